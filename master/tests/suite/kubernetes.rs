//! The store and the back end over the cluster that KUBECONFIG names, in a namespace of their own.
//! The back end needs the image `muster-test_pod`, which holds the agent and an exec.py: `make test` builds it.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use kube::{Client, Config};
use master::backend::kube::{Cluster, KubeBackend};
use master::store::kube::KubeStore;
use master::store::{JobRecord, JobStore};
use protocol::job::JobSpec;

/// A namespace that goes with its test.
struct Scene {
    client: Client,
    cluster: Cluster,
}

impl Scene {
    async fn new() -> Self {
        let config = Config::infer().await.expect("KUBECONFIG names a cluster");
        let client = Client::try_from(config).expect("a client");
        let name = format!("muster-test-{}", &uuid::Uuid::new_v4().to_string()[..8]);
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
        Self { cluster: Cluster::new(client.clone(), name), client }
    }

    async fn end(self) {
        let namespaces: Api<Namespace> = Api::all(self.client);
        namespaces.delete(self.cluster.namespace(), &DeleteParams::default()).await.expect("delete the namespace");
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG)"]
async fn the_kubernetes_store_conforms() {
    let scene = Scene::new().await;
    testkit::conformance::store::check(&KubeStore::new(&scene.cluster)).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Kubernetes cluster (KUBECONFIG)"]
async fn the_kubernetes_back_end_conforms() {
    let scene = Scene::new().await;
    let image = "muster-test_pod:latest".parse().expect("an image's name");
    let record = testkit::conformance::store::record("pods");
    let spec = JobSpec { image: Some(image), ..record.spec.clone() };
    let stored = KubeStore::new(&scene.cluster)
        .create(JobRecord { spec: spec.clone(), ..record })
        .await
        .expect("the record that owns the pods");
    let pods = KubeBackend::begin(&scene.cluster).await.expect("watch the pods");
    testkit::conformance::backend::check(&pods, &spec, &stored.record.uid).await;
    scene.end().await;
}
