//! The form of a rule that a value must obey.

/// Returns the error from the function, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $error:expr) => {
        if !$condition {
            return Err($error);
        }
    };
}
pub(crate) use ensure;
