//! The OpenAPI schemas that are written by hand: those of texts with a pattern, of `UnixMillis` and of `ExitReport`.
//! All other schemas are derived.

use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{RefOr, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

use crate::agent::{ExitReport, ExitReportWire};
use crate::code::{CodeId, CodePath, ScriptPath, Sha256};
use crate::env::EnvName;
use crate::ids::{Generation, JobName, ReplicaId, UnixMillis};
use crate::image::ImageRef;
use crate::pod::{Amount, LabelKey, LabelValue, MemorySize, ObjectName, RunAs, Toleration, Volume};
use crate::warm::ModuleName;

/// Describes types that JSON writes as strings: description, pattern and example.
macro_rules! strings {
    ($($type:ty: $what:literal, $pattern:expr, $example:literal;)*) => {$(
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                let text = ObjectBuilder::new().schema_type(Type::String);
                text.description(Some($what)).pattern(Some($pattern)).examples([$example]).into()
            }
        }
        impl ToSchema for $type {}
    )*};
}

/// Pattern of an absolute path without a colon, as in [`Volume`].
macro_rules! path {
    () => {
        "/[^:\\u0000]*"
    };
}

/// Pattern of a quantity in Kubernetes' notation.
macro_rules! quantity {
    () => {
        "[0-9]+(\\.[0-9]*)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?"
    };
}

/// Pattern of a relative path of a job's code.
macro_rules! relative_path {
    () => {
        "^[^/\\\\\\u0000-\\u001f]+(/[^/\\\\\\u0000-\\u001f]+)*$"
    };
}

strings! {
    JobName: "A job's name: a DNS label of at most 55 characters", "^[a-z0-9]([a-z0-9-]{0,53}[a-z0-9])?$", "digits";
    ReplicaId: "A replica: ROLE-INDEX", "^(chief|worker|ps|evaluator)-(0|[1-9][0-9]{0,9})$", "worker-2";
    Generation: "A start of the gang, EPOCH.SEQUENCE. EPOCH counts how often a master, or a \
        new driver of it, has taken the job. SEQUENCE counts the starts in this epoch",
        "^(0|[1-9][0-9]{0,9})\\.(0|[1-9][0-9]{0,9})$", "1.1";
    EnvName: "Name of an environment variable", "^[A-Za-z_][A-Za-z0-9_]{0,127}$", "BATCH";
    ModuleName: "Name of a Python module, at most 128 characters",
        "^[A-Za-z_][A-Za-z0-9_]{0,127}(\\.[A-Za-z_][A-Za-z0-9_]*)*$", "tensorflow.keras";
    CodeId: "Id of a job's code: the SHA-256 of a text with a line `SHA256 SIZE MODE PATH` for each file, in the order \
        of the paths. MODE is x for an executable file, otherwise -",
        "^[0-9a-f]{64}$", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    Sha256: "SHA-256 of a file's content", "^[0-9a-f]{64}$",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    CodePath: "Relative path with / between its parts, at most 1,024 bytes. No part is empty, . or .., and the first \
        part is not .muster",
        relative_path!(), "src/train.py";
    ScriptPath: "Path of the script, with the rules of a CodePath. It does not begin with -. For a job in place, it may be absolute",
        "^/?[^/\\\\\\u0000-\\u001f]+(/[^/\\\\\\u0000-\\u001f]+)*$", "train.py";
    ImageRef: "An image name, [HOST[:PORT]/]PATH[:TAG][@DIGEST]",
        "^(\\[[0-9A-Fa-f:]+\\](:[0-9]+)?/)?[A-Za-z0-9][A-Za-z0-9._:/-]*(@[a-z0-9]+:[0-9a-f]{32,128})?$", "allreduce:1";
    RunAs: "The user of the pods' processes: image, UID or UID:GID. UID 0 (root) is refused",
        "^(image|[0-9]{1,10}(:[0-9]{1,10})?)$", "1000";
    Amount: "REQUEST:LIMIT in Kubernetes' notation, or one quantity for both. The limit is at least the request",
        concat!("^", quantity!(), "(:", quantity!(), ")?$"), "500m:2";
    MemorySize: "A quantity of memory in Kubernetes' notation, at least 1Mi",
        concat!("^", quantity!(), "$"), "2Gi";
    Volume: "pvc:CLAIM:/path, host:/dir:/path or empty:/path. A final :ro mounts it read-only. /path must not be / or \
        in /muster",
        concat!("^(pvc:[a-z0-9.-]+|host:", path!(), "|empty):", path!(), "(:ro)?$"), "pvc:data:/data:ro";
    ObjectName: "Name of a Kubernetes object: a DNS subdomain", "^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$", "training";
    LabelKey: "Key of a label or taint, [PREFIX/]NAME",
        "^([a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$", "example.com/disk";
    LabelValue: "Value of a label or taint", "^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$", "ssd";
    Toleration: "A taint to tolerate, KEY[=VALUE][:EFFECT]",
        "^[^=:]+(=[^=:]*)?(:(NoSchedule|PreferNoSchedule|NoExecute))?$", "spot=true:NoSchedule";
}

impl PartialSchema for UnixMillis {
    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
        let number = number.format(Some(SchemaFormat::KnownFormat(utoipa::openapi::KnownFormat::Int64)));
        number.description(Some("Milliseconds since the Unix epoch")).into()
    }
}

impl ToSchema for UnixMillis {}

impl PartialSchema for ExitReport {
    fn schema() -> RefOr<Schema> {
        ExitReportWire::schema()
    }
}

impl ToSchema for ExitReport {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        ExitReportWire::schemas(schemas);
    }
}
