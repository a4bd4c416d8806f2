//! The examples with real TensorFlow. `make test` installs it and puts its `python` on the PATH.

use e2e::Place;

e2e::journeys_of_trainings!(Place::OwnMaster, #[cfg(unix)]);
