//! The local cache of a Mountpoint Pod. Enters: attributes and mount options of a volume. Leaves: the pod's volume for the
//! cache, and how much of it the engine may use; or a sentence about what is invalid.
//!
//! The reconciler and the node both use this file: the reconciler creates the pod's volume, the node passes its size to the engine.

use super::quantity::Quantity;
use super::volume;

/// Name of the Mountpoint Pod's volume for the cache. The claim of a generic ephemeral volume has the pod's name and this one.
pub const VOLUME: &str = "local-cache";
/// The mount point of that volume in the pod.
pub const DIRECTORY: &str = "/local-cache";
/// The value of [`volume::CACHE`] for a generic ephemeral volume.
pub const EPHEMERAL: &str = "ephemeral";
/// The default size of a cache. A volume without a limit could fill the node's disk, and the kubelet would evict pods.
pub const SIZE: Quantity = Quantity::of(10 << 30);
/// The share of the volume that the engine uses, in per cent. The kubelet evicts a pod whose emptyDir exceeds its limit, and measures the
/// emptyDir only from time to time.
const USED_PERCENT: u64 = 95;

/// The cache of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The medium of the cache.
    pub place: Place,
    /// The volume's size.
    pub size: Quantity,
    /// `--max-cache-size` of the engine, in MiB.
    pub max_mib: u64,
    /// Whether neither attributes nor options set a size.
    pub is_default: bool,
}

/// The medium of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The node's disk (an emptyDir).
    Disk,
    /// The node's memory, which counts as the pod's.
    Memory,
    /// A generic ephemeral volume of this StorageClass.
    Ephemeral {
        /// The StorageClass.
        class: String,
    },
}

impl Cache {
    /// The cache of a volume; `None` if its attributes name none.
    ///
    /// # Errors
    /// A sentence that names the attribute or option, and its expected form.
    pub fn read<'a>(
        attribute: impl Fn(&str) -> Option<&'a str>,
        options: &[String],
    ) -> Result<Option<Self>, String> {
        let named = |key: &str| attribute(key).filter(|text| !text.is_empty());
        let only_with = |kind: &str, keys: [&str; 2]| match keys.iter().find(|key| named(key).is_some()) {
            Some(key) => Err(format!("volume attribute {key} belongs to {}: {kind}", volume::CACHE)),
            None => Ok(()),
        };
        let of_empty_dir = [volume::CACHE_SIZE_LIMIT, volume::CACHE_MEDIUM];
        let of_ephemeral = [volume::CACHE_CLASS, volume::CACHE_REQUEST];
        let wanted = max_cache_size(options);
        match named(volume::CACHE) {
            None => {
                only_with("emptyDir", of_empty_dir)?;
                only_with("ephemeral", of_ephemeral)?;
                // Earlier releases took a directory as the option's value, which has no meaning in a pod.
                if !has_cache(options) {
                    return Ok(None);
                }
                let is_default = wanted.is_none();
                let size = wanted.map_or(SIZE, volume_for);
                let max_mib = wanted.unwrap_or_else(|| usable_mib(SIZE));
                Ok(Some(Self { place: Place::Disk, size, max_mib, is_default }))
            }
            Some("emptyDir") => {
                only_with("ephemeral", of_ephemeral)?;
                let size = quantity(volume::CACHE_SIZE_LIMIT, named(volume::CACHE_SIZE_LIMIT))?;
                let place = match (named(volume::CACHE_MEDIUM), size) {
                    (None, _) => Place::Disk,
                    (Some("Memory"), Some(_)) => Place::Memory,
                    (Some("Memory"), None) => {
                        return Err(format!(
                            "volume attribute {} is Memory, which needs a size: set {}, such as 256Mi",
                            volume::CACHE_MEDIUM,
                            volume::CACHE_SIZE_LIMIT
                        ));
                    }
                    (Some(other), _) => {
                        return Err(format!(
                            "volume attribute {} is {other:?}, and must be Memory or empty",
                            volume::CACHE_MEDIUM
                        ));
                    }
                };
                Self::within(place, size, volume::CACHE_SIZE_LIMIT, wanted).map(Some)
            }
            Some(EPHEMERAL) => {
                only_with("emptyDir", of_empty_dir)?;
                let size = quantity(volume::CACHE_REQUEST, named(volume::CACHE_REQUEST))?;
                let (Some(class), Some(_)) = (named(volume::CACHE_CLASS), size) else {
                    return Err(format!(
                        "volume attribute {} is ephemeral, and that needs both {} and {}",
                        volume::CACHE,
                        volume::CACHE_CLASS,
                        volume::CACHE_REQUEST
                    ));
                };
                let place = Place::Ephemeral { class: class.to_owned() };
                Self::within(place, size, volume::CACHE_REQUEST, wanted).map(Some)
            }
            Some(other) => Err(format!(
                "volume attribute {} is {other:?}, and must be emptyDir or ephemeral",
                volume::CACHE
            )),
        }
    }

    /// A cache in a volume of this size. The option `max-cache-size` (`wanted`, in MiB) may use less than the volume has, not more.
    fn within(
        place: Place,
        size: Option<Quantity>,
        attribute: &str,
        wanted: Option<u64>,
    ) -> Result<Self, String> {
        let is_default = size.is_none() && wanted.is_none();
        let size = match (size, wanted) {
            (Some(size), _) => size,
            (None, Some(mib)) => volume_for(mib),
            (None, None) => SIZE,
        };
        if let Some(mib) = wanted
            && mib > size.bytes() >> 20
        {
            return Err(format!(
                "mount option 'max-cache-size' is {mib} MiB, and {attribute} is only {}",
                size.as_memory()
            ));
        }
        let usable = usable_mib(size);
        if usable == 0 {
            return Err(format!("volume attribute {attribute} is less than 2Mi, too little for a cache"));
        }
        Ok(Self { place, size, max_mib: wanted.map_or(usable, |mib| mib.min(usable)), is_default })
    }
}

fn usable_mib(size: Quantity) -> u64 {
    (size.bytes() >> 20) * USED_PERCENT / 100
}

/// The size of a volume whose usable share is at least `mib`.
fn volume_for(mib: u64) -> Quantity {
    Quantity::of(mib.saturating_add(mib / 16 + 1).saturating_mul(1 << 20))
}

fn quantity(attribute: &str, text: Option<&str>) -> Result<Option<Quantity>, String> {
    let Some(text) = text else { return Ok(None) };
    match Quantity::parse(text) {
        Some(quantity) => Ok(Some(quantity)),
        None => Err(format!(
            "volume attribute {attribute} is {text:?}, and must be a quantity like 256Mi or 10Gi"
        )),
    }
}

fn has_cache(options: &[String]) -> bool {
    options.iter().any(|option| volume::name_and_value(option).0 == "cache")
}

/// The size in MiB that the options name. A value that is not a number is ignored here: the engine refuses it.
fn max_cache_size(options: &[String]) -> Option<u64> {
    let values = options.iter().map(|option| volume::name_and_value(option));
    values
        .filter(|(name, _)| *name == "max-cache-size")
        .find_map(|(_, value)| value.parse().ok())
        .filter(|mib| *mib > 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn read(attributes: &[(&str, &str)], options: &[&str]) -> Result<Option<Cache>, String> {
        let attributes: BTreeMap<_, _> = attributes.iter().copied().collect();
        let options: Vec<_> = options.iter().map(|&it| it.to_owned()).collect();
        Cache::read(|key| attributes.get(key).copied(), &options)
    }

    #[test]
    fn a_volume_that_says_nothing_of_a_cache_has_none() {
        assert_eq!(read(&[], &["allow-delete", "max-cache-size=5"]), Ok(None));
        assert_eq!(read(&[(volume::CACHE, "")], &[]), Ok(None));
    }

    #[test]
    fn the_engine_uses_at_most_95_percent_of_its_cache_volume() {
        let limit = [(volume::CACHE, "emptyDir"), (volume::CACHE_SIZE_LIMIT, "1Gi")];
        let cache = read(&limit, &[]).unwrap().unwrap();
        assert_eq!((&cache.place, cache.max_mib, cache.is_default), (&Place::Disk, 972, false));
        assert_eq!(cache.size, Quantity::of(1 << 30));
        assert_eq!(read(&limit, &["max-cache-size 100"]).unwrap().unwrap().max_mib, 100);
        assert_eq!(read(&limit, &["--max-cache-size=1000"]).unwrap().unwrap().max_mib, 972);
        let error = read(&limit, &["max-cache-size=1025"]).unwrap_err();
        assert!(
            error.contains("1025 MiB") && error.contains("cacheEmptyDirSizeLimit is only 1024Mi"),
            "{error}"
        );
    }

    #[test]
    fn a_cache_in_memory_needs_a_size_and_one_of_its_own_class_and_size() {
        let memory = [(volume::CACHE, "emptyDir"), (volume::CACHE_MEDIUM, "Memory")];
        assert!(read(&memory, &[]).unwrap_err().contains(volume::CACHE_SIZE_LIMIT));
        let sized = [memory[0], memory[1], (volume::CACHE_SIZE_LIMIT, "256Mi")];
        assert_eq!(read(&sized, &[]).unwrap().unwrap().place, Place::Memory);
        let ephemeral =
            [(volume::CACHE, "ephemeral"), (volume::CACHE_CLASS, "fast"), (volume::CACHE_REQUEST, "20Gi")];
        let cache = read(&ephemeral, &[]).unwrap().unwrap();
        assert_eq!(cache.place, Place::Ephemeral { class: "fast".into() });
        assert_eq!(cache.max_mib, 19_456);
        for left_out in [1, 2] {
            let error = read(&[ephemeral[0], ephemeral[3 - left_out]], &[]).unwrap_err();
            assert!(error.contains(ephemeral[left_out].0), "{error}");
        }
    }

    #[test]
    fn the_option_of_earlier_releases_gets_a_volume_with_a_limit() {
        let cache = read(&[], &["cache /var/cache"]).unwrap().unwrap();
        assert_eq!(
            (cache.place, cache.size, cache.max_mib, cache.is_default),
            (Place::Disk, SIZE, 9728, true)
        );
        let cache = read(&[], &["--cache=/x", "max-cache-size=100"]).unwrap().unwrap();
        assert_eq!((cache.max_mib, cache.is_default), (100, false));
        for mib in [1, 2, 15, 16, 17, 100, 1 << 20] {
            assert!(usable_mib(volume_for(mib)) >= mib, "the engine may use what it was given: {mib}");
        }
        // This is more than a number of bytes can hold.
        assert!(read(&[], &["cache=/x", "max-cache-size=18446744073709551615"]).is_ok());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let rows: [(&[(&str, &str)], &str); 7] = [
            (&[(volume::CACHE, "disk")], "must be emptyDir or ephemeral"),
            (&[(volume::CACHE_SIZE_LIMIT, "1Gi")], "cacheEmptyDirSizeLimit belongs to cache: emptyDir"),
            (&[(volume::CACHE_CLASS, "fast")], "cacheEphemeralStorageClassName belongs to cache: ephemeral"),
            (&[(volume::CACHE, "emptyDir"), (volume::CACHE_CLASS, "fast")], "belongs to cache: ephemeral"),
            (&[(volume::CACHE, "emptyDir"), (volume::CACHE_SIZE_LIMIT, "much")], "\"much\""),
            (&[(volume::CACHE, "emptyDir"), (volume::CACHE_SIZE_LIMIT, "1Mi")], "too little"),
            (&[(volume::CACHE, "emptyDir"), (volume::CACHE_MEDIUM, "Disk")], "must be Memory or empty"),
        ];
        for (attributes, words) in rows {
            let error = read(attributes, &[]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
