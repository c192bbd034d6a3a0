//! The keys of mounts in Mountpoint Pods. Enters: a request with keys or tokens. Leaves: files that the pod's engine reads, and the variables that
//! lead to them.
//!
//! Never here: a key in a message or a log.

use super::{Assigned, Node};
use crate::contract::comm::Comm;
use crate::contract::volume;
use crate::error::{Error, ErrorKind, Result};
use crate::mounter::MountRequest;
use crate::mounter::assignment::MountpointPod;
use crate::mounter::comm_files::CredentialFiles;
use crate::mounter::credentials::{self, Profile};

impl Node {
    /// A volume that names a Secret never gets the driver's keys in its place. The kubelet's call does not tell an empty Secret from none, but the
    /// reconciler's word on the pod does, and the note on how the source was mounted, which is there without the API server.
    pub(super) fn check_keys(
        &self,
        request: &MountRequest,
        name: &str,
        pod: Option<&MountpointPod>,
    ) -> Result<()> {
        let needs_secret = pod.is_some_and(|pod| pod.keys_of_secret) || self.notes.is_of_secret(name);
        if request.of_secret || !needs_secret {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the Secret that nodePublishSecretRef of PersistentVolume {} names is empty, and the driver's keys are never used in its place: \
             write access_key_id and secret_access_key into that Secret",
            request.volume
        )))
    }

    /// Writes the request's keys; `None` if the request has no keys.
    pub(super) fn write_credentials(
        &self,
        request: &MountRequest,
        pod: &Assigned<'_>,
    ) -> Result<Option<Profile>> {
        let profile = Profile::new(pod.uid, &request.handle)?;
        match (&request.credentials, &request.token) {
            (Some(keys), _) => profile.write(&self.credential_files(pod)?, keys)?,
            (None, Some(token)) => {
                // The call writes both files: the choice was made when the engine started, and the API server may be away now.
                let files = self.credential_files(pod)?;
                profile.write_token(&files, token)?;
                if let Some(agent) = &request.agent {
                    profile.write_agent_token(&files, &agent.token)?;
                }
            }
            (None, None) => return Ok(None),
        }
        Ok(Some(profile))
    }

    fn credential_files(&self, pod: &Assigned<'_>) -> Result<CredentialFiles> {
        let comm = self.open_comm(pod)?;
        comm.credentials().map_err(|error| credentials::failed(comm.path(), &error))
    }

    /// Variables that lead the engine to keys of the workload's service account: by its role, else by the node's agent. An attachment without an
    /// account may serve workloads of several, so it gets neither.
    pub(super) fn identity_env(
        &self,
        profile: &Profile,
        request: &MountRequest,
    ) -> Result<Vec<(String, String)>> {
        let directory = Comm::in_pod().credentials();
        let identity = self.assignments.identity(&request.volume, &request.workload_uid);
        match (identity, &request.agent) {
            (Some(identity), _) if !identity.role.is_empty() => {
                Ok(profile.token_env(&directory, &identity.role).into())
            }
            (Some(_), Some(agent)) => Ok(profile.agent_env(&directory, &agent.url).into()),
            _ => Err(Error::new(
                ErrorKind::FailedPrecondition,
                format!(
                    "no role is known for the workload: its attachment names none. Was it made before the volume said authenticationSource: \
                     pod, or by an older release? Annotate the workload's ServiceAccount with {} and restart the workload",
                    volume::ROLE_ANNOTATIONS[0]
                ),
            )),
        }
    }
}
