//! Macros for types that users and programs write as text.

/// Lets serde write and read a type as a string, through its `Display` and `FromStr`.
macro_rules! serde_as_string {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = <$type as FromStr>::Err;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}
pub(crate) use serde_as_string;

/// For a struct that contains a checked text, and has a `FromStr`: access to the text, `Display`, and the form in JSON.
macro_rules! checked_text {
    ($type:ty) => {
        impl $type {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
        $crate::as_text::serde_as_string!($type);
    };
}
pub(crate) use checked_text;

/// For an enum without data: the list of its values, the name of each value, and `Display`.
macro_rules! names {
    ($type:ty { $($value:ident => $name:literal,)* }) => {
        impl $type {
            /// All values, in the order of the enum.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            /// The name of the value, for users and programs.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }
        }
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use names;
