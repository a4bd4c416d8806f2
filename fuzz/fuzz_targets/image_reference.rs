//! Names of images: what is one is written as it was read, and so is every name that follows from it.
#![cfg_attr(fuzzing, no_main)]

use protocol::image::ImageRef;

/// A repository's name may be this long, and the pods' image has one that is longer by `_pod`.
const BASE_MAX: usize = 255 - "_pod".len();

fn reads_back(image: &ImageRef) {
    assert_eq!(image.to_string().parse().as_ref(), Ok(image));
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|text: &[u8]| check(text));

/// Tries one input.
///
/// # Panics
/// When it breaks what the first line of this file says.
pub(crate) fn check(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(image) = text.parse::<ImageRef>() else { return };
    assert_eq!(image.to_string(), text);
    // It stands in a Dockerfile's FROM and in URLs.
    assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b".:/@_-[]".contains(&b)), "{text}");
    assert!(image.repository().len() <= 255 && image.tag().is_none_or(|tag| tag.len() <= 128));
    if image.repository().len() <= BASE_MAX {
        reads_back(&image.of_pods());
    }
    image.below("localhost:5000/team").iter().for_each(reads_back);
    image.at(&format!("sha256:{}", "0".repeat(64))).iter().for_each(reads_back);
}
