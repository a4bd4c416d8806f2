//! The NetworkPolicy of a job. TensorFlow's server runs any graph that it receives, so only the job's own pods may
//! reach TensorFlow's port. The master may reach the agents' port.

use job::key::JobKey;
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use protocol::routes::AGENT_PORT;

use super::manifest::{JOB_UID, owner};
use crate::kube::api::{APP_COMPONENT, APP_INSTANCE, APP_NAME, JOB, MANAGED_BY, MUSTER, MasterPlace};

/// Builds the policy. Its name contains the job's uid. Otherwise, an earlier job's policy could have the same name, and
/// Kubernetes may delete that policy at any moment.
pub(super) fn policy(job: &JobKey, master: MasterPlace) -> NetworkPolicy {
    let labels = [
        (MANAGED_BY, MUSTER),
        (APP_NAME, "muster-job"),
        (APP_INSTANCE, job.name.as_str()),
        (APP_COMPONENT, "network"),
        (JOB, job.name.as_str()),
        (JOB_UID, &job.uid),
    ];
    let of_the_job = || pods_with(&[(JOB_UID, &job.uid)]);
    let from_the_job = NetworkPolicyIngressRule { from: Some(vec![peer(of_the_job())]), ports: None };
    let agent = NetworkPolicyPort {
        protocol: Some("TCP".to_owned()),
        port: Some(IntOrString::Int(AGENT_PORT.into())),
        end_port: None,
    };
    let from_the_master = NetworkPolicyIngressRule { from: masters(master), ports: Some(vec![agent]) };
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(format!("muster-{}-{}", job.name, job.uid)),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            owner_references: Some(vec![owner(job)]),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(of_the_job()),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![from_the_job, from_the_master]),
            egress: None,
        }),
    }
}

/// The pods that may reach the agents' port; `None` allows everyone. The policy can only select pods of its namespace.
/// If the master runs elsewhere, the port is open to everyone, and only the agents' tokens protect the port.
fn masters(place: MasterPlace) -> Option<Vec<NetworkPolicyPeer>> {
    match place {
        MasterPlace::PodBesideJobs => Some(vec![peer(pods_with(&[(APP_NAME, MUSTER), (APP_COMPONENT, "master")]))]),
        MasterPlace::Elsewhere => None,
    }
}

fn peer(pods: LabelSelector) -> NetworkPolicyPeer {
    NetworkPolicyPeer { pod_selector: Some(pods), ..NetworkPolicyPeer::default() }
}

fn pods_with(labels: &[(&str, &str)]) -> LabelSelector {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    LabelSelector { match_labels: Some(labels.collect()), match_expressions: None }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sent(master: MasterPlace) -> Value {
        let job = JobKey { name: "digits".parse().unwrap(), uid: "u-1".to_owned() };
        serde_json::to_value(policy(&job, master)).unwrap()
    }

    #[test]
    fn pods_of_a_job_reach_each_other_and_the_master_reaches_their_agents() {
        let expected = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "name": "muster-digits-u-1",
                "labels": {
                    "app.kubernetes.io/managed-by": "muster",
                    "app.kubernetes.io/name": "muster-job",
                    "app.kubernetes.io/instance": "digits",
                    "app.kubernetes.io/component": "network",
                    "muster/job": "digits",
                    "muster/job-uid": "u-1",
                },
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "ConfigMap", "name": "muster-digits", "uid": "u-1", "controller": true },
                ],
            },
            "spec": {
                "podSelector": { "matchLabels": { "muster/job-uid": "u-1" } },
                "policyTypes": ["Ingress"],
                "ingress": [
                    { "from": [{ "podSelector": { "matchLabels": { "muster/job-uid": "u-1" } } }] },
                    {
                        "from": [{ "podSelector": { "matchLabels": {
                            "app.kubernetes.io/name": "muster", "app.kubernetes.io/component": "master",
                        } } }],
                        "ports": [{ "protocol": "TCP", "port": 7896 }],
                    },
                ],
            },
        });
        assert_eq!(sent(MasterPlace::PodBesideJobs), expected);
    }

    #[test]
    fn if_the_master_runs_elsewhere_only_the_agents_port_is_open_to_everyone() {
        let ingress = sent(MasterPlace::Elsewhere)["spec"]["ingress"].take();
        assert_eq!(ingress[1], json!({ "ports": [{ "protocol": "TCP", "port": 7896 }] }));
        assert_eq!(ingress[0], sent(MasterPlace::PodBesideJobs)["spec"]["ingress"][0]);
        assert_eq!(ingress.as_array().map(Vec::len), Some(2));
    }
}
