//! Listing objects.

use std::ops::Bound;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use isobath::{Error, Snapshot};
use object_store::list::{PaginatedListOptions, PaginatedListResult};
use object_store::path::{DELIMITER, Path};
use object_store::{ListResult, ObjectMeta, Result};

use crate::error::Failure;
use crate::record::ObjectRecord;
use crate::trees::Trees;

/// The beginning of the paths of what is below `prefix`.
fn below(prefix: Option<&Path>) -> String {
    match prefix {
        Some(prefix) if !prefix.as_ref().is_empty() => format!("{prefix}{DELIMITER}"),
        _ => String::new(),
    }
}

/// The keys that begin with `prefix`, behind `after`.
fn range(prefix: &str, after: Bound<Vec<u8>>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let (first, end) = isobath::prefix_range(prefix);
    let first = match (first, after) {
        (first, Bound::Unbounded) => first,
        (Bound::Included(first), Bound::Excluded(after)) if after < first => Bound::Included(first),
        (Bound::Included(first), Bound::Included(after)) if after < first => Bound::Included(first),
        (_, after) => after,
    };
    (first, end)
}

fn meta(key: &[u8], value: &[u8]) -> Result<ObjectMeta, Failure> {
    let location = path(key)?;
    Ok(ObjectRecord::decode(value)?.meta(location))
}

fn path(key: &[u8]) -> Result<Path, Failure> {
    let text = std::str::from_utf8(key).map_err(|_| Error::Structure {
        page: 0,
        reason: "the tree of an object store has a key that is no path",
    })?;
    let path = Path::parse(text).map_err(object_store::Error::from)?;
    Ok(path)
}

/// All objects below `prefix` whose paths come after `offset`, in their order.
pub(crate) fn list(
    trees: &Trees,
    prefix: Option<&Path>,
    offset: Option<&Path>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let after = match offset {
        Some(offset) => Bound::Excluded(offset.as_ref().as_bytes().to_vec()),
        None => Bound::Unbounded,
    };
    let bounds = range(&below(prefix), after);
    if is_empty(&bounds) {
        return futures_util::stream::empty().boxed();
    }
    let location = prefix.cloned().unwrap_or_default();
    let records = trees.objects.range_async(bounds);
    let listed = records.map(move |record| {
        let found = record.map_err(Failure::from);
        let found = found.and_then(|(key, value)| meta(&key, &value));
        found.map_err(|error| error.at(&location))
    });
    listed.boxed()
}

fn is_empty((first, end): &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> bool {
    match (first, end) {
        (Bound::Included(first) | Bound::Excluded(first), Bound::Excluded(end)) => first >= end,
        _ => false,
    }
}

/// One level of the paths that begin with a prefix.
struct Level {
    prefix: String,
    delimiter: Option<String>,
    after: Bound<Vec<u8>>,
    /// Objects and common prefixes, at most.
    limit: usize,
}

impl Level {
    /// Reads the level; where the next page begins, if there is more. Of each common prefix only
    /// the first object is read.
    fn read(
        self,
        trees: &Trees,
        snapshot: &Snapshot,
    ) -> Result<(ListResult, Option<Vec<u8>>), Failure> {
        let mut result = ListResult {
            objects: Vec::new(),
            common_prefixes: Vec::new(),
            extensions: object_store::Extensions::default(),
        };
        let mut bounds = range(&self.prefix, self.after.clone());
        // Bound: each round but the last passes a common prefix.
        loop {
            if is_empty(&bounds) {
                return Ok((result, None));
            }
            let mut common = None;
            for record in snapshot.range(&trees.objects, bounds.clone())? {
                let (key, value) = record?;
                if result.objects.len() + result.common_prefixes.len() == self.limit {
                    return Ok((result, Some(key)));
                }
                if let Some(end) = self.common_prefix(&key) {
                    common = Some(key[..end].to_vec());
                    break;
                }
                result.objects.push(meta(&key, &value)?);
            }
            let (Some(common), Some(delimiter)) = (common, &self.delimiter) else {
                return Ok((result, None));
            };
            let (_, behind) = isobath::prefix_range(&common);
            let name = &common[..common.len() - delimiter.len()];
            result.common_prefixes.push(path(name)?);
            let Bound::Excluded(behind) = behind else {
                return Ok((result, None));
            };
            bounds.0 = Bound::Included(behind);
        }
    }

    /// Bytes of the key up to the first delimiter behind the prefix, that included.
    fn common_prefix(&self, key: &[u8]) -> Option<usize> {
        let delimiter = self.delimiter.as_ref()?;
        let rest = std::str::from_utf8(key.get(self.prefix.len()..)?).ok()?;
        let at = rest.find(delimiter.as_str())?;
        Some(self.prefix.len() + at + delimiter.len())
    }
}

/// The objects and common prefixes directly below `prefix`.
pub(crate) async fn list_with_delimiter(
    trees: &Arc<Trees>,
    prefix: Option<&Path>,
) -> Result<ListResult> {
    let level = Level {
        prefix: below(prefix),
        delimiter: Some(DELIMITER.to_owned()),
        after: Bound::Unbounded,
        limit: usize::MAX,
    };
    let listed = trees.run(move |trees| level.read(trees, &trees.store.snapshot()?));
    let location = prefix.cloned().unwrap_or_default();
    let (result, _) = listed.await.map_err(|error| error.at(&location))?;
    Ok(result)
}

/// Some objects whose paths begin with `prefix`, and where the next ones begin.
pub(crate) async fn list_page(
    trees: &Arc<Trees>,
    prefix: Option<&str>,
    options: PaginatedListOptions,
) -> Result<PaginatedListResult> {
    let after = match (&options.page_token, &options.offset) {
        (Some(token), _) => Bound::Included(token.clone().into_bytes()),
        (None, Some(offset)) => Bound::Excluded(offset.clone().into_bytes()),
        (None, None) => Bound::Unbounded,
    };
    let level = Level {
        prefix: prefix.unwrap_or_default().to_owned(),
        delimiter: options
            .delimiter
            .filter(|delimiter| !delimiter.is_empty())
            .map(|delimiter| delimiter.into_owned()),
        after,
        limit: options.max_keys.unwrap_or(usize::MAX).max(1),
    };
    let listed = trees.run(move |trees| level.read(trees, &trees.store.snapshot()?));
    let listed = listed.await.map_err(|error| error.at(&Path::default()))?;
    let (result, next) = listed;
    let page_token = next.map(|key| String::from_utf8_lossy(&key).into_owned());
    Ok(PaginatedListResult { result, page_token })
}

/// Removes objects as their paths come, some at a time, and answers in the order of the paths.
pub(crate) fn delete_stream(
    trees: &Arc<Trees>,
    locations: BoxStream<'static, Result<Path>>,
) -> BoxStream<'static, Result<Path>> {
    /// Objects that are removed at a time: their commits share flushes.
    const AT_ONCE: usize = 64;
    let trees = Arc::clone(trees);
    let deleted = locations.map(move |location| {
        let trees = Arc::clone(&trees);
        async move {
            let location = location?;
            crate::write::delete(&trees, &location).await?;
            Ok(location)
        }
    });
    deleted.buffered(AT_ONCE).boxed()
}
