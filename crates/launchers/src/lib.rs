//! The files of other launchers: TFJobs become jobs, and the pod templates that users bring are checked. Pure functions
//! over values.

pub mod kubeflow;
pub mod similar;
pub mod template;
pub mod timestamp;
