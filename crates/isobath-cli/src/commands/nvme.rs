//! nvme: drives, and giving them to programs and back.

use std::sync::Arc;

use isobath_lab::Sheet;
use isobath_nvme::{
    Controller, ControllerInfo, ControllerOptions, Drive, KernelController, Machine, NamespaceInfo,
    NvmeError, SmartLog, VfioBus,
};
use serde_json::json;

use crate::args::{NvmeArgs, NvmeVerb};
use crate::failure::Failure;
use crate::output::{Output, size};

/// Most namespaces that are shown.
const MAX_NAMESPACES: u32 = 32;

/// Runs a verb of `nvme`.
pub(crate) fn nvme(args: &NvmeArgs, out: &mut Output) -> Result<(), Failure> {
    let machine = Machine::at(&args.root);
    match &args.verb {
        NvmeVerb::List => list(&machine, out),
        NvmeVerb::Identify(drive) => identify(&Asked::open(&machine, &drive.address)?, out),
        NvmeVerb::Smart(drive) => smart(&Asked::open(&machine, &drive.address)?.smart()?, out),
        NvmeVerb::Bind(args) => {
            let address = &args.drive.address;
            machine.bind(address, args.force)?;
            tell(out, address, "vfio-pci")
        }
        NvmeVerb::Unbind(drive) => {
            machine.unbind(&drive.address)?;
            tell(out, &drive.address, "nvme")
        }
    }
}

fn tell(out: &mut Output, address: &str, driver: &str) -> Result<(), Failure> {
    if out.json() {
        return out.document(&json!({ "address": address, "driver": driver }));
    }
    let text = match driver {
        "vfio-pci" => format!("{address} is bound to vfio-pci; the kernel has no access to it"),
        _ => format!("{address} is given back to the kernel"),
    };
    out.line(&text)
}

/// What is on a drive, in words.
fn contents(drive: &Drive) -> Vec<String> {
    let of_block = |block: &isobath_nvme::BlockDevice| {
        let store = format!("{} has a store of Isobath", block.name);
        let store = block.is_store.then_some(store);
        block
            .contents
            .iter()
            .cloned()
            .chain(store)
            .collect::<Vec<_>>()
    };
    drive.blocks.iter().flat_map(of_block).collect()
}

fn list(machine: &Machine, out: &mut Output) -> Result<(), Failure> {
    let drives = machine.drives();
    if out.json() {
        for drive in &drives {
            let blocks = drive
                .blocks
                .iter()
                .map(|block| json!({ "name": block.name, "bytes": block.bytes }));
            out.document(&json!({
                "address": drive.address,
                "model": drive.model,
                "driver": drive.driver,
                "iommu_group": drive.iommu_group,
                "group_others": drive.group_others,
                "blocks": blocks.collect::<Vec<_>>(),
                "users": drive.users(),
                "contents": contents(drive),
            }))?;
        }
        return Ok(());
    }
    if drives.is_empty() {
        return out.line("there are no NVMe drives");
    }
    fn or_none(text: Option<String>) -> String {
        text.unwrap_or_else(|| "none".to_owned())
    }
    out.texts(&Sheet::of(
        &drives,
        &[
            ("address", |drive| drive.address.clone()),
            ("model", |drive| drive.model.clone().unwrap_or_default()),
            ("driver", |drive| or_none(drive.driver.clone())),
            ("IOMMU group", |drive| {
                let others = drive.group_others.join(", ");
                or_none(drive.iommu_group.map(|group| match others.is_empty() {
                    true => group.to_string(),
                    false => format!("{group}, with {others}"),
                }))
            }),
            ("namespaces", |drive| {
                let blocks = drive.blocks.iter();
                let blocks = blocks.map(|block| format!("{} ({})", block.name, size(block.bytes)));
                blocks.collect::<Vec<_>>().join(", ")
            }),
            ("in use", |drive| {
                [drive.users(), contents(drive)].concat().join("; ")
            }),
        ],
    ))
}

/// A drive that is asked, by whatever drives it.
enum Asked {
    ByKernel(KernelController),
    ByUs(Arc<Controller>),
}

impl Asked {
    fn open(machine: &Machine, address: &str) -> Result<Asked, Failure> {
        let drive = machine.drive(address)?;
        if let Some(path) = drive.controller {
            return Ok(Asked::ByKernel(KernelController::open(&path)?));
        }
        let bus = Arc::new(VfioBus::open(machine, address)?);
        let controller = Controller::open(bus, &ControllerOptions::default())?;
        Ok(Asked::ByUs(controller))
    }

    fn info(&self) -> Result<ControllerInfo, NvmeError> {
        match self {
            Asked::ByKernel(controller) => controller.info(),
            Asked::ByUs(controller) => Ok(controller.info().clone()),
        }
    }

    fn namespace(&self, id: u32) -> Result<Option<NamespaceInfo>, NvmeError> {
        match self {
            Asked::ByKernel(controller) => controller.namespace(id),
            Asked::ByUs(controller) => match controller.namespace(id) {
                Err(NvmeError::NoNamespace { .. }) => Ok(None),
                found => found.map(Some),
            },
        }
    }

    fn smart(&self) -> Result<SmartLog, NvmeError> {
        match self {
            Asked::ByKernel(controller) => controller.smart(),
            Asked::ByUs(controller) => controller.smart(),
        }
    }
}

fn identify(drive: &Asked, out: &mut Output) -> Result<(), Failure> {
    let info = drive.info()?;
    let mut namespaces = Vec::new();
    for id in 1..=info.namespaces.min(MAX_NAMESPACES) {
        namespaces.extend(drive.namespace(id)?);
    }
    if out.json() {
        let namespaces = namespaces.iter().map(|namespace| {
            json!({
                "id": namespace.id,
                "bytes": namespace.bytes(),
                "block_bytes": namespace.block_bytes(),
                "metadata_bytes": namespace.metadata_bytes,
            })
        });
        return out.document(&json!({
            "model": info.model,
            "serial": info.serial,
            "firmware": info.firmware,
            "max_transfer_bytes": info.max_transfer_bytes,
            "volatile_cache": info.volatile_cache,
            "deallocate": info.deallocate,
            "write_zeroes": info.write_zeroes,
            "namespaces": namespaces.collect::<Vec<_>>(),
        }));
    }
    let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
    let transfer = info
        .max_transfer_bytes
        .map_or_else(|| "unlimited".to_owned(), size);
    let mut rows = vec![
        ("model".to_owned(), info.model),
        ("serial number".to_owned(), info.serial),
        ("firmware".to_owned(), info.firmware),
        ("largest transfer".to_owned(), transfer),
        ("volatile write cache".to_owned(), yes(info.volatile_cache)),
        ("deallocate".to_owned(), yes(info.deallocate)),
        ("write zeroes".to_owned(), yes(info.write_zeroes)),
    ];
    for namespace in &namespaces {
        let (bytes, block) = (size(namespace.bytes()), namespace.block_bytes());
        let metadata = match namespace.metadata_bytes {
            0 => String::new(),
            bytes => format!(" and {bytes} bytes of metadata"),
        };
        let name = format!("namespace {}", namespace.id);
        rows.push((name, format!("{bytes}, blocks of {block} bytes{metadata}")));
    }
    out.facts(&["what", "value"], rows, false)
}

fn smart(log: &SmartLog, out: &mut Output) -> Result<(), Failure> {
    if out.json() {
        // Numbers of 128 bits are text, as JSON's readers take 53.
        return out.document(&json!({
            "critical_warning": log.critical_warning,
            "temperature_c": log.temperature_c,
            "spare_percent": log.spare_percent,
            "used_percent": log.used_percent,
            "read_bytes": log.read_bytes.to_string(),
            "written_bytes": log.written_bytes.to_string(),
            "reads": log.reads.to_string(),
            "writes": log.writes.to_string(),
            "power_cycles": log.power_cycles.to_string(),
            "power_on_hours": log.power_on_hours.to_string(),
            "unsafe_shutdowns": log.unsafe_shutdowns.to_string(),
            "media_errors": log.media_errors.to_string(),
        }));
    }
    let bytes = |bytes: u128| size(u64::try_from(bytes).unwrap_or(u64::MAX));
    let rows = [
        (
            "critical warnings (bits)",
            format!("{:#04x}", log.critical_warning),
        ),
        ("temperature", format!("{} °C", log.temperature_c)),
        ("spare blocks left", format!("{}%", log.spare_percent)),
        ("life used", format!("{}%", log.used_percent)),
        ("read by hosts", bytes(log.read_bytes)),
        ("written by hosts", bytes(log.written_bytes)),
        ("read commands", log.reads.to_string()),
        ("write commands", log.writes.to_string()),
        ("power cycles", log.power_cycles.to_string()),
        ("hours with power", log.power_on_hours.to_string()),
        ("unsafe shutdowns", log.unsafe_shutdowns.to_string()),
        ("errors of the medium", log.media_errors.to_string()),
    ];
    out.facts(&["what", "value"], rows, true)
}
