//! Compares `proto/` with the published protocols of CSI and the kubelet: every message, field, value and call in `proto/` must be in
//! the published ones. `proto/` may leave parts out.
//!
//! `ci/csi-descriptor` fetches the published ones and prints the folder for `CSI_DESCRIPTORS`; `ci/test` does so.

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet, ServiceDescriptorProto,
};

static OURS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// A sentence for everything that a file declares.
type Facts = BTreeMap<String, String>;

fn facts(file: &FileDescriptorProto) -> Facts {
    let mut facts = Facts::new();
    let package = file.package();
    for message in &file.message_type {
        of_message(&mut facts, package, message);
    }
    for it in &file.enum_type {
        of_enum(&mut facts, package, it);
    }
    for service in &file.service {
        of_service(&mut facts, package, service);
    }
    facts
}

fn of_message(facts: &mut Facts, parent: &str, message: &DescriptorProto) {
    let name = format!("{parent}.{}", message.name());
    let map_entry = message.options.as_ref().is_some_and(|options| options.map_entry());
    facts.insert(name.clone(), format!("message, map entry: {map_entry}"));
    for field in &message.field {
        let choice = field.oneof_index.and_then(|at| message.oneof_decl.get(usize::try_from(at).ok()?));
        facts.insert(
            format!("{name}.{}", field.name()),
            format!(
                "field {}, {:?} {:?} {}, one of {:?}, optional: {}",
                field.number(),
                field.label(),
                field.r#type(),
                field.type_name(),
                choice.map(|it| it.name()),
                field.proto3_optional()
            ),
        );
    }
    for nested in &message.nested_type {
        of_message(facts, &name, nested);
    }
    for nested in &message.enum_type {
        of_enum(facts, &name, nested);
    }
}

fn of_enum(facts: &mut Facts, parent: &str, it: &EnumDescriptorProto) {
    let name = format!("{parent}.{}", it.name());
    facts.insert(name.clone(), "enum".to_owned());
    for value in &it.value {
        facts.insert(format!("{name}.{}", value.name()), format!("value {}", value.number()));
    }
}

fn of_service(facts: &mut Facts, package: &str, service: &ServiceDescriptorProto) {
    let name = format!("{package}.{}", service.name());
    facts.insert(name.clone(), "service".to_owned());
    for method in &service.method {
        facts.insert(
            format!("{name}.{}", method.name()),
            format!(
                "call {} -> {}, streams: {} {}",
                method.input_type(),
                method.output_type(),
                method.client_streaming(),
                method.server_streaming()
            ),
        );
    }
}

fn ours(file: &str) -> Facts {
    let set = FileDescriptorSet::decode(OURS).unwrap();
    let found = set.file.iter().find(|it| it.name() == file);
    facts(found.unwrap_or_else(|| panic!("{file} is not among the compiled files")))
}

fn differences(ours: &Facts, theirs: &Facts) -> Vec<String> {
    let differs = |(name, fact): (&String, &String)| match theirs.get(name) {
        Some(theirs) if theirs == fact => None,
        Some(theirs) => Some(format!("{name}: ours is {fact}, theirs {theirs}")),
        None => Some(format!("{name}: only ours ({fact})")),
    };
    ours.iter().filter_map(differs).collect()
}

fn compare(file: &str, published: &str, least: usize) {
    let folder = std::env::var("CSI_DESCRIPTORS").unwrap_or_default();
    if !testkit::need("CSI_DESCRIPTORS (ci/csi-descriptor prints it)", !folder.is_empty()) {
        return;
    }
    let path = Path::new(&folder).join(published);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let ours = ours(file);
    assert!(ours.len() >= least, "{file}: only {} facts", ours.len());
    let theirs = facts(&FileDescriptorProto::decode(bytes.as_slice()).unwrap());
    let found = differences(&ours, &theirs);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn our_container_storage_interface_is_the_published_one() {
    compare("csi.proto", "csi.bin", 250);
}

#[test]
fn a_difference_is_seen() {
    let ours = ours("csi.proto");
    for (name, other) in [
        ("csi.v1.NodePublishVolumeRequest.readonly", None),
        ("csi.v1.NodePublishVolumeRequest.target_path", Some("field 5")),
        ("csi.v1.VolumeCapability.AccessMode.Mode.SINGLE_NODE_MULTI_WRITER", Some("value 6")),
        ("csi.v1.Node.NodeGetInfo", Some("call")),
        ("csi.v1.NodePublishVolumeRequest.SecretsEntry.value", Some("field 3")),
    ] {
        let mut theirs = ours.clone();
        assert!(theirs.remove(name).is_some(), "{name} is declared");
        theirs.extend(other.map(|fact| (name.to_owned(), fact.to_owned())));
        theirs.insert("csi.v1.OnlyTheirs".to_owned(), "message".to_owned());
        let found = differences(&ours, &theirs);
        assert!(found.len() == 1 && found[0].starts_with(name), "{found:?}");
    }
}
