//! Runs the conformance suites for the store and the back end of Kubernetes. Each suite has its own namespace.

use e2e::cluster::{Image, Namespace};
use master::agents::token::AgentKey;
use master::backend::kube::{KubeBackend, PodRules};
use master::kube::Cluster;
use master::store::kube::KubeStore;
use master::store::{JobRecord, JobStore};
use protocol::job::JobSpec;
use testkit::conformance;

async fn reach(namespace: &Namespace) -> Cluster {
    Cluster::connect(Some(namespace.name().to_owned())).await.expect("KUBECONFIG names no cluster")
}

#[tokio::test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG)"]
async fn the_store_passes_the_conformance_suite() {
    let namespace = Namespace::new();
    conformance::store::check(&KubeStore::new(&reach(&namespace).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG) and Docker"]
async fn the_back_end_passes_the_conformance_suite() {
    let (namespace, image) = (Namespace::new(), Image::shared());
    let cluster = reach(&namespace).await;
    let image = image.wrapped().parse().expect("not an image's name");
    let record = conformance::store::record("pods");
    let spec = JobSpec { image: Some(image), ..JobSpec::clone(&record.spec) };
    let record = JobRecord { spec: spec.clone().into(), ..record };
    let stored = KubeStore::new(&cluster).create(record).await.expect("cannot create the record that owns the pods");
    let pods = KubeBackend::begin(&cluster, PodRules::default()).await.expect("cannot watch the pods");
    conformance::backend::check(&pods, &spec, &stored.record.uid, &AgentKey::random()).await;
}
