//! Numbers of bytes as people read them.

/// A number of bytes as text: `17 bytes`, `1.5 KiB` or `64.0 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const STEP: u64 = 1024;
    if bytes < STEP {
        return format!("{bytes} bytes");
    }
    let mut whole = bytes;
    let mut below = 0;
    for unit in ["KiB", "MiB", "GiB", "TiB"] {
        (whole, below) = (whole / STEP, whole % STEP);
        if whole < STEP {
            return format!("{whole}.{} {unit}", below * 10 / STEP);
        }
    }
    format!("{whole}.{} TiB", below * 10 / STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_shown_in_the_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1536, "1.5 KiB"),
            (64 << 20, "64.0 MiB"),
            ((64 << 20) - 1, "63.9 MiB"),
            (11 << 30, "11.0 GiB"),
            (5000 << 40, "5000.0 TiB"),
        ] {
            assert_eq!(size(bytes), text, "{bytes}");
        }
    }
}
