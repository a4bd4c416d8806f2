//! How the values that are sent as strings look in an OpenAPI document; messages derive their schemas where they stand.

use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{RefOr, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

use crate::agent::{ExitReport, ExitReportWire};
use crate::env::EnvName;
use crate::ids::{Generation, JobName, ReplicaId, UnixMillis};
use crate::image::ImageRef;
use crate::pod::{Amount, LabelKey, LabelValue, ObjectName, Toleration, Volume};

/// Describes types that have the JSON form of a string: what it is, the form that every one has, and one of them.
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

/// An absolute path without a colon, as [`Volume`] takes it.
macro_rules! path {
    () => {
        "/[^:\\u0000]*"
    };
}

strings! {
    JobName: "A job's name: a DNS label of at most 40 characters", "^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", "digits";
    ReplicaId: "A replica: its role, and its index in the role", "^(chief|worker|ps|evaluator)-(0|[1-9][0-9]{0,9})$", "worker-2";
    Generation: "A start of the gang: the master's epoch, and the start's number in it",
        "^(0|[1-9][0-9]{0,9})\\.(0|[1-9][0-9]{0,9})$", "1.1";
    EnvName: "A variable's name", "^[A-Za-z_][A-Za-z0-9_]{0,127}$", "BATCH";
    ImageRef: "An image, [HOST[:PORT]/]PATH[:TAG][@DIGEST], by the distribution project's grammar",
        "^[A-Za-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?$", "allreduce:1";
    Amount: "A quantity in Kubernetes' notation as request and limit, or REQUEST:LIMIT with a limit not below it",
        "^[0-9]+(\\.[0-9]*)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?(:[0-9]+(\\.[0-9]*)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?)?$", "500m:2";
    Volume: "pvc:CLAIM:/path, host:/dir:/path or empty:/path, each with :ro or without; not / and not /muster",
        concat!("^(pvc:[a-z0-9.-]+|host:", path!(), "|empty):", path!(), "(:ro)?$"), "pvc:data:/data:ro";
    ObjectName: "The name of an object of Kubernetes: a DNS subdomain", "^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$", "training";
    LabelKey: "A label's or a taint's key, [PREFIX/]NAME",
        "^([a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$", "example.com/disk";
    LabelValue: "A label's or a taint's value", "^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$", "ssd";
    Toleration: "A taint that a node may have, KEY[=VALUE][:EFFECT]",
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
