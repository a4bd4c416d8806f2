//! Image names. An accepted name, and every name derived from it, is the same after it is written and parsed again.
#![cfg_attr(fuzzing, no_main)]

use protocol::image::ImageRef;

/// Maximum bytes of a repository to which `_pod` can be appended: a repository has at most 255 bytes.
const BASE_MAX: usize = 255 - "_pod".len();

fn reads_back(image: &ImageRef) {
    assert_eq!(image.to_string().parse().as_ref(), Ok(image));
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|text: &[u8]| check(text));

/// Checks one input.
///
/// # Panics
/// If, for this input, the program does not behave as the `//!` comment of this target says.
pub(crate) fn check(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(image) = text.parse::<ImageRef>() else { return };
    assert_eq!(image.to_string(), text);
    // Dockerfiles and URLs contain the name without quotes or escapes.
    assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b".:/@_-[]".contains(&b)), "{text}");
    assert!(image.repository().len() <= 255 && image.tag().is_none_or(|tag| tag.len() <= 128));
    if image.repository().len() <= BASE_MAX {
        reads_back(&image.of_pods());
    }
    image.below("localhost:5000/team").iter().for_each(reads_back);
    image.at(&format!("sha256:{}", "0".repeat(64))).iter().for_each(reads_back);
}
