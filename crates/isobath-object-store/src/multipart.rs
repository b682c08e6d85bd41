//! Both interfaces of uploads in parts.

use std::sync::Arc;

use async_trait::async_trait;
use isobath::Durability;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    MultipartId, MultipartUpload, PutMultipartOptions, PutPayload, PutResult, Result, UploadPart,
};

use crate::IsobathObjectStore;
use crate::error::generic;
use crate::id::Id;
use crate::trees::Trees;
use crate::upload::{self, Live};

/// An upload of this process. Dropping it before its end aborts it.
pub(crate) struct PartUpload {
    trees: Arc<Trees>,
    location: Path,
    live: Live,
    /// Parts that were handed over.
    parts: u32,
    has_ended: bool,
}

impl std::fmt::Debug for PartUpload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartUpload")
            .field("location", &self.location)
            .field("id", &self.live.id)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl PartUpload {
    pub(crate) async fn begin(
        trees: &Arc<Trees>,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<PartUpload> {
        let live = Live::new();
        upload::begin(trees, location, live.id, options.attributes, false).await?;
        Ok(PartUpload {
            trees: Arc::clone(trees),
            location: location.clone(),
            live,
            parts: 0,
            has_ended: false,
        })
    }
}

#[async_trait]
impl MultipartUpload for PartUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let part = self.parts;
        self.parts += 1;
        Box::pin(upload::put_part(
            Arc::clone(&self.trees),
            self.location.clone(),
            self.live.id,
            part,
            payload,
            false,
        ))
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let count = self.parts as usize;
        let result = upload::complete(&self.trees, &self.location, self.live.id, count).await?;
        self.has_ended = true;
        Ok(result)
    }

    async fn abort(&mut self) -> Result<()> {
        let aborted = upload::abort(&self.trees, self.live.id, Durability::None).await;
        aborted.map_err(|error| error.at(&self.location))?;
        self.has_ended = true;
        Ok(())
    }
}

impl Drop for PartUpload {
    fn drop(&mut self) {
        if !self.has_ended {
            // It goes on without this. No caller is left to receive an error: what cannot be
            // removed now is removed when the objects are opened again.
            drop(upload::abort(&self.trees, self.live.id, Durability::None));
        }
    }
}

/// Uploads that outlive the process: one that is neither completed nor aborted stays.
#[async_trait]
impl MultipartStore for IsobathObjectStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        let options = PutMultipartOptions::default();
        self.create_multipart_opts(path, options).await
    }

    async fn create_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<MultipartId> {
        let id = Id::new();
        upload::begin(&self.trees, path, id, options.attributes, true).await?;
        Ok(id.to_string())
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part: usize,
        payload: PutPayload,
    ) -> Result<PartId> {
        let id = parse(id)?;
        let part = u32::try_from(part).map_err(|_| generic(format!("there is no part {part}")))?;
        let trees = Arc::clone(&self.trees);
        upload::put_part(trees, path.clone(), id, part, payload, true).await?;
        Ok(PartId {
            content_id: part.to_string(),
        })
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        upload::complete(&self.trees, path, parse(id)?, parts.len()).await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        // A name that is gone does not come back after a crash.
        let aborted = upload::abort(&self.trees, parse(id)?, Durability::Synced).await;
        aborted.map_err(|error| error.at(path))
    }
}

fn parse(id: &MultipartId) -> Result<Id> {
    Id::parse(id).ok_or_else(|| generic(format!("{id:?} names no upload")))
}
