//! The GPUs of this machine.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::process::environment::Environment;

/// A list of the devices that CUDA may use (CUDA's programming guide, "CUDA environment variables").
const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The number of NVIDIA's devices in a folder such as /dev: `nvidia0`, `nvidia1` and so on, as far as the variable
/// CUDA_VISIBLE_DEVICES lists them.
pub(super) fn gpus(folder: &Path, environment: &Environment) -> u32 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_gpu = |name: &OsStr| {
        let number = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let devices = entries.filter(|entry| is_gpu(&entry.file_name())).count();
    let visible = environment.get(OsStr::new(CUDA_VISIBLE_DEVICES));
    let listed = visible.map(|list| list.to_string_lossy().split(',').filter(|device| !device.is_empty()).count());
    u32::try_from(listed.map_or(devices, |listed| listed.min(devices))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_are_counted_as_far_as_they_are_visible() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let count = |visible: Option<&str>| {
            gpus(folder.path(), &visible.map(|list| (CUDA_VISIBLE_DEVICES.into(), list.into())).into_iter().collect())
        };
        assert_eq!([count(None), count(Some("1,GPU-8f3a")), count(Some("0,1,2,3")), count(Some(""))], [3, 2, 3, 0]);
        assert_eq!(gpus(&folder.path().join("none"), &Environment::new()), 0);
    }
}
