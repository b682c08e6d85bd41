//! The suite that the crate `object_store` publishes for its implementations.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use isobath::{Durability, Options, Store};
use isobath_object_store::IsobathObjectStore;
use object_store::ObjectStore;
use object_store::integration;

/// Objects in memory.
fn objects() -> IsobathObjectStore {
    let options = Options::new().pool_bytes(8 << 20).workers(2);
    let store = Store::in_memory(&options.durability(Durability::None)).unwrap();
    IsobathObjectStore::open(&store, "objects").unwrap()
}

macro_rules! suite {
    ($($name:ident => |$objects:ident| $call:expr;)*) => {
        $(#[tokio::test]
        async fn $name() {
            let $objects = &objects();
            $call.await;
        })*
    };
}

suite! {
    put_get_delete_list => |objects| integration::put_get_delete_list(objects);
    put_get_attributes => |objects| integration::put_get_attributes(objects);
    get_opts => |objects| integration::get_opts(objects);
    put_opts => |objects| integration::put_opts(objects, true);
    stream_get => |objects| integration::stream_get(objects);
    list_uses_directories_correctly =>
        |objects| integration::list_uses_directories_correctly(objects);
    list_with_delimiter => |objects| integration::list_with_delimiter(objects);
    rename_and_copy => |objects| integration::rename_and_copy(objects);
    copy_if_not_exists => |objects| integration::copy_if_not_exists(objects);
    copy_rename_nonexistent_object =>
        |objects| integration::copy_rename_nonexistent_object(objects);
    multipart => |objects| integration::multipart(objects, objects);
    multipart_with_opts => |objects| integration::multipart_with_opts(objects, objects);
    multipart_put_part_out_of_order =>
        |objects| integration::multipart_put_part_out_of_order(objects, objects);
    multipart_race_condition => |objects| integration::multipart_race_condition(objects, true);
    multipart_out_of_order => |objects| integration::multipart_out_of_order(objects);
    list_paginated => |objects| integration::list_paginated(objects, objects);
    list_with_offset_exclusivity => |objects| integration::list_with_offset_exclusivity(objects);
}

#[tokio::test]
async fn get_nonexistent_object() {
    let error = integration::get_nonexistent_object(&objects(), None).await;
    let error = error.unwrap_err();
    assert!(
        matches!(error, object_store::Error::NotFound { .. }),
        "{error}"
    );
}

/// As programs use it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_an_arc_and_on_several_threads() {
    let objects: Arc<dyn ObjectStore> = Arc::new(objects());
    integration::put_get_delete_list(&objects).await;
    integration::put_opts(&objects, true).await;
    integration::rename_and_copy(&objects).await;
}
