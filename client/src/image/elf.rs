//! Reads the header of a Linux program (elf(5)): its processor, and whether the program needs a loader.

use std::fmt;

/// The type of a program header that names a loader.
const PT_INTERP: u64 = 3;
/// Size of the header of a 64-bit file, in bytes. Program headers come after it.
const HEADER_64: usize = 64;

/// A kind of processor, as its number in an ELF header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ElfMachine(u64);

/// ELF's number and Docker's name of each known processor.
const KNOWN: [(u64, &str); 6] =
    [(62, "amd64"), (183, "arm64"), (243, "riscv64"), (22, "s390x"), (21, "ppc64le"), (258, "loong64")];

impl ElfMachine {
    /// The processor with this name in Docker. `None` if [`KNOWN`] does not contain the name.
    pub(super) fn of_architecture(name: &str) -> Option<Self> {
        KNOWN.into_iter().find(|(_, known)| *known == name).map(|(number, _)| Self(number))
    }
}

impl fmt::Display for ElfMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match KNOWN.into_iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "machine {}", self.0),
        }
    }
}

const NO_PROGRAM: &str = "is not a 64-bit Linux program";
/// The program needs a loader and a C library.
const DYNAMIC: &str = "is dynamically linked: it does not start in an image that lacks its libraries";

/// The processor of a static program. The error is the end of a sentence about the file.
pub(super) fn machine_of_static(file: &[u8]) -> Result<ElfMachine, &'static str> {
    let is_64_bit_elf = file.starts_with(b"\x7fELF\x02") && file.len() >= HEADER_64;
    let field = |at, bytes| number(file, at, bytes).filter(|_| is_64_bit_elf).ok_or(NO_PROGRAM);
    let (first_header, header_bytes, headers) = (field(32, 8)?, field(54, 2)?, field(56, 2)?);
    for index in 0..headers {
        let at = first_header.checked_add(index * header_bytes).ok_or(NO_PROGRAM)?;
        if field(at, 4)? == PT_INTERP {
            return Err(DYNAMIC);
        }
    }
    field(18, 2).map(ElfMachine)
}

/// The number in the `bytes` bytes at offset `at`. At most 8 bytes.
fn number(file: &[u8], at: u64, bytes: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let field = file.get(at..at.checked_add(bytes)?)?;
    let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
    let is_big_endian = file.get(5) == Some(&2);
    Some(if is_big_endian { field.iter().fold(0, add) } else { field.iter().rev().fold(0, add) })
}

/// For tests: the smallest program with program headers of these types.
#[cfg(test)]
pub(super) fn program(machine: u16, header_types: &[u32]) -> Vec<u8> {
    let mut file = vec![0; HEADER_64];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[18..20].copy_from_slice(&machine.to_le_bytes());
    file[32..40].copy_from_slice(&(HEADER_64 as u64).to_le_bytes());
    file[54..56].copy_from_slice(&56_u16.to_le_bytes());
    file[56..58].copy_from_slice(&u16::try_from(header_types.len()).unwrap().to_le_bytes());
    for header_type in header_types {
        let mut header = [0; 56];
        header[..4].copy_from_slice(&header_type.to_le_bytes());
        file.extend(header);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_needs_a_loader_is_not_static() {
        let (load, dynamic, loader) = (1, 2, 3);
        assert_eq!(machine_of_static(&program(62, &[load])).unwrap().to_string(), "amd64");
        assert_eq!(machine_of_static(&program(8, &[load])).unwrap().to_string(), "machine 8");
        // A static-pie program has a dynamic section, but needs no loader.
        assert_eq!(machine_of_static(&program(183, &[load, dynamic])).unwrap().to_string(), "arm64");
        assert_eq!(machine_of_static(&program(62, &[load, loader, dynamic])), Err(DYNAMIC));
    }

    #[test]
    fn the_program_of_this_test_is_static_only_if_it_was_built_so() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let expected = if cfg!(target_feature = "crt-static") { None } else { Some(DYNAMIC) };
        assert_eq!(machine_of_static(&own).err(), expected);
    }

    #[test]
    fn other_files_and_truncated_programs_are_refused() {
        let whole = program(62, &[1, 1]);
        for file in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &whole[..63], &whole[..64 + 56]] {
            assert_eq!(machine_of_static(file), Err(NO_PROGRAM), "{} bytes", file.len());
        }
        let mut far = whole.clone();
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(machine_of_static(&far), Err(NO_PROGRAM));
        let mut of_32_bits = whole;
        of_32_bits[4] = 1;
        assert_eq!(machine_of_static(&of_32_bits), Err(NO_PROGRAM));
    }
}
