//! Objects in a store: conditional puts, a listing, a range, an upload in parts.
//!
//! ```text
//! cargo run -p isobath-object-store --example objects -- objects.iso
//! ```
//!
//! What takes an `Arc<dyn ObjectStore>` takes this one, such as DataFusion:
//!
//! ```text
//! let url = Url::parse("isobath://objects")?;
//! context.register_object_store(&url, objects);
//! context.register_parquet("people", "isobath://objects/people/", Default::default()).await?;
//! ```

use std::sync::Arc;

use futures_util::TryStreamExt;
use isobath::{Options, Store};
use isobath_object_store::IsobathObjectStore;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args_os().nth(1).unwrap_or("objects.iso".into());
    let store = Store::open_or_create(&file, &Options::new().pool_bytes(64 << 20))?;
    let objects: Arc<dyn ObjectStore> = Arc::new(IsobathObjectStore::open(&store, "objects")?);

    for (name, text) in [("ada", "Analytical Engine"), ("grace", "compiler")] {
        let path = Path::from("people").join(name);
        objects.put(&path, text.into()).await?;
    }
    let ada = Path::from("people/ada");
    println!(
        "bytes 0 to 9 of {ada}: {:?}",
        objects.get_range(&ada, 0..10).await?
    );

    // Of two programs that read the same object, the first to update it wins.
    let read = objects.head(&ada).await?;
    let version = object_store::UpdateVersion {
        e_tag: read.e_tag,
        version: read.version,
    };
    let first = PutMode::Update(version.clone());
    objects
        .put_opts(&ada, "Bernoulli numbers".into(), first.into())
        .await?;
    let second = PutMode::Update(version);
    let refused = objects.put_opts(&ada, "poetry".into(), second.into()).await;
    println!(
        "the second update: {}",
        refused.err().map_or_else(String::new, |e| e.to_string())
    );

    // The object appears when its upload is completed.
    let film = Path::from("films/first");
    let mut upload = objects.put_multipart(&film).await?;
    for scene in 0..3_u8 {
        upload.put_part(vec![scene; 1 << 20].into()).await?;
    }
    upload.complete().await?;

    let mut listed = objects.list(None);
    while let Some(meta) = listed.try_next().await? {
        println!("{:>8} bytes  {}", meta.size, meta.location);
    }
    drop((listed, objects));
    store.close()?;
    Ok(())
}
