//! vssd: the virtual SSD.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use isobath_lab::LabError;
use isobath_lab::drive_model::write_whole;
use isobath_lab::vssd::host::{self, MountRequest};
use isobath_lab::vssd::{
    DeclaredState, DriveStats, NewDrive, OpenAs, Profile, Smart, VirtualDrive, serve as serve_drive,
};
use serde_json::json;

use super::watch::{check_interval, each_interval};
use crate::args::{
    GlobalArgs, VssdCreateArgs, VssdMountArgs, VssdPreconditionArgs, VssdServeArgs, VssdStatsArgs,
    VssdUmountArgs, VssdVerb,
};
use crate::failure::Failure;
use crate::output::{Output, count, size};
use crate::progress::Progress;

/// Runs a verb of `vssd`.
pub(crate) fn vssd(verb: &VssdVerb, global: &GlobalArgs, out: &mut Output) -> Result<(), Failure> {
    match verb {
        VssdVerb::Create(args) => create(args, out),
        VssdVerb::Mount(args) => mount(args, out),
        VssdVerb::Stats(args) if args.watch => watch(args, global, out),
        VssdVerb::Stats(args) => stats(args, out),
        VssdVerb::Precondition(args) => precondition(args, global, out),
        VssdVerb::Umount(args) => umount(args, out),
        VssdVerb::Serve(args) => serve(args),
    }
}

fn open_as(as_is: bool) -> OpenAs {
    match as_is {
        true => OpenAs::AsIs,
        false => OpenAs::Declared,
    }
}

fn create(args: &VssdCreateArgs, out: &mut Output) -> Result<(), Failure> {
    let superblock = args.superblock.map(|size| u32::try_from(size.0));
    let superblock_bytes = superblock
        .transpose()
        .map_err(|_| Failure::Usage("--superblock must be below 4GiB".into()))?;
    let new = NewDrive {
        capacity_bytes: args.size.0,
        over_provisioning: args.over_provisioning,
        superblock_bytes,
        policy: args.policy,
        cache_bytes: args.cache.0,
        wear_difference_max: args.wear_difference,
    };
    let drive = VirtualDrive::create(&args.drive, &new)?;
    print(&args.drive, &drive.stats(), out)
}

fn mount(args: &VssdMountArgs, out: &mut Output) -> Result<(), Failure> {
    let mut serve = vec!["vssd".to_owned(), "serve".to_owned()];
    if let Some(profile) = &args.profile {
        // Its problems are reported here, and a file is found from any directory.
        Profile::named_or_file(profile)?;
        let path = fs::canonicalize(profile).ok();
        let path = path.and_then(|path| path.to_str().map(str::to_owned));
        let is_name = Profile::named(profile).is_some();
        let text = path.filter(|_| !is_name).unwrap_or_else(|| profile.clone());
        serve.extend(["--profile".to_owned(), text]);
    }
    if args.as_is {
        serve.push("--as-is".to_owned());
    }
    let program = std::env::current_exe().map_err(LabError::io("find", Path::new("isobath")))?;
    let request = MountRequest {
        serve: (program, serve),
        mount_point: args.mount_point.as_deref(),
        format: args.format,
        discard: args.discard,
        expect: args.expect,
        open_as: open_as(args.as_is),
    };
    let mounted = host::mount(&args.drive, &request)?;
    if out.json() {
        return out.document(&json!({
            "device": mounted.device,
            "mount_point": args.mount_point,
            "formatted": mounted.formatted,
            "direct_io": mounted.direct,
            "profile": args.profile,
        }));
    }
    let device = mounted.device.display();
    match &args.mount_point {
        Some(point) => {
            let formatted = if mounted.formatted { ", formatted" } else { "" };
            out.line(&format!("{device} at {}{formatted}", point.display()))?;
        }
        None => out.line(&device.to_string())?,
    }
    if !mounted.direct {
        out.line("The loop device does not pass the page cache by; counters may come later.")?;
    }
    Ok(())
}

/// Ends when the drive is unmounted.
fn serve(args: &VssdServeArgs) -> Result<(), Failure> {
    let profile = args.profile.as_deref().map(Profile::named_or_file);
    let profile = profile.transpose()?;
    // The terminal's Ctrl-C, and its end, are not for the drive.
    let _ = rustix::process::setsid();
    serve_drive(&args.drive, open_as(args.as_is), profile, || {
        let mut out = std::io::stdout();
        // The drive is served also if the parent has stopped waiting.
        let _ = out.write_all(b"ready\n").and_then(|()| out.flush());
    })?;
    Ok(())
}

fn umount(args: &VssdUmountArgs, out: &mut Output) -> Result<(), Failure> {
    // This process may have been started on the file system that goes.
    let target = std::path::absolute(&args.target).map_err(LabError::io("open", &args.target))?;
    // Staying keeps a directory busy, and nothing else.
    let _ = std::env::set_current_dir("/");
    let stats = host::unmount(&target, args.force)?;
    print(&args.target, &stats, out)
}

fn precondition(
    args: &VssdPreconditionArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    if !(args.times >= 0.0 && args.times <= 1000.0) {
        return Err(Failure::Usage("--times must be 0 to 1000".into()));
    }
    let progress = Progress::in_order(global, &[])?;
    let drive = VirtualDrive::open(&args.drive, OpenAs::AsIs)?;
    if drive.declared().1 && !args.destroy {
        return Err(Failure::Usage(format!(
            "{} was mounted: what it holds would be lost; --destroy does it all the same",
            args.drive.display()
        )));
    }
    match args.state {
        DeclaredState::Trimmed => drive.trim_all()?,
        DeclaredState::Preconditioned | DeclaredState::AsIs => {
            drive.precondition(args.times, args.seed, &progress)?
        }
    }
    progress.clear();
    print(&args.drive, &drive.stats(), out)
}

fn stats(args: &VssdStatsArgs, out: &mut Output) -> Result<(), Failure> {
    if args.mark {
        return Ok(host::set_mark(&args.drive)?);
    }
    let Some(path) = &args.cdf else {
        return print(&args.drive, &host::stats(&args.drive)?, out);
    };
    let csv = host::write_frequency(&args.drive)?;
    if path == Path::new("-") {
        return out.raw(csv.as_bytes());
    }
    Ok(write_whole(path, &csv)?)
}

/// WA-D as printed.
fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"))
}

/// The statistics of a drive.
fn print(directory: &Path, stats: &DriveStats, out: &mut Output) -> Result<(), Failure> {
    if out.json() {
        return out.document(stats);
    }
    let used = match (stats.used, stats.pid.is_some()) {
        (false, _) => ", not used since",
        (true, true) => ", mounted",
        (true, false) => ", used since",
    };
    out.line(&format!(
        "{}: {} of {}, {}{used}",
        directory.display(),
        size(stats.valid_pages * 4096),
        size(stats.capacity_bytes),
        stats.declared.name()
    ))?;
    out.line(&format!(
        "{} superblocks of {}, {:.1}% over-provisioning, {} cleaning, {} write cache",
        count(stats.superblocks),
        size(u64::from(stats.superblock_bytes)),
        stats.over_provisioning * 100.0,
        stats.policy,
        size(stats.cache_bytes)
    ))?;
    for (device, points) in host::where_mounted(directory) {
        let points: Vec<String> = points.iter().map(|p| p.display().to_string()).collect();
        out.line(&format!("{} at {}", device.display(), points.join(", ")))?;
    }
    out.table(&["", "since mark", "life"], &rows(stats), true)?;
    if stats.pid.is_some() {
        out.line(&modelled(stats))?;
    }
    Ok(())
}

/// The note about rates on the drive.
fn modelled(stats: &DriveStats) -> String {
    match &stats.profile {
        None => "Without --profile, rates on this drive are no measurements.".to_owned(),
        Some(profile) => format!(
            "Rates are modelled by {profile}: {} of {} I/Os came over 100 µs later than the model.",
            count(stats.late),
            count(stats.paced)
        ),
    }
}

fn rows(stats: &DriveStats) -> Vec<Vec<String>> {
    let row = |name: &str, show: fn(&Smart) -> String| {
        vec![name.to_owned(), show(&stats.since_mark), show(&stats.life)]
    };
    vec![
        row("WA-D", |c| ratio(c.wa_d())),
        row("host wrote", |c| size(c.host_written_bytes)),
        row("flash wrote", |c| size(c.flash_written_bytes)),
        row("  moved by cleaning", |c| size(c.flash_relocated_bytes)),
        row("    levelling wear", |c| size(c.flash_levelled_bytes)),
        row("host read", |c| size(c.host_read_bytes)),
        row("host discarded", |c| size(c.host_trimmed_bytes)),
        row("flushes", |c| count(c.host_flushes)),
        row("erases", |c| count(c.erases)),
        vec![
            "pages written".to_owned(),
            format!("{:.1}%", stats.written_share * 100.0),
            String::new(),
        ],
        vec![
            "erases of a superblock".to_owned(),
            String::new(),
            format!("{} to {}", stats.wear_min, stats.wear_max),
        ],
    ]
}

/// Prints the changes of each interval until the drive is unmounted, `--count` lines were
/// printed, or Ctrl-C.
fn watch(args: &VssdStatsArgs, global: &GlobalArgs, out: &mut Output) -> Result<(), Failure> {
    check_interval(args.every)?;
    let progress = Progress::in_order(global, &[])?;
    let before = host::stats(&args.drive)?;
    if before.pid.is_none() {
        let text = format!("{} is not mounted", args.drive.display());
        return Err(Failure::NotFound(text));
    }
    // Unmounting takes the drive away: the end of what there is to see.
    let now = || {
        host::stats(&args.drive)
            .ok()
            .filter(|now| now.pid.is_some())
    };
    let print = |before: &DriveStats, now: &DriveStats, time, with_header, out: &mut Output| {
        if out.json() {
            return out.document(&change_json(before, now, time));
        }
        if with_header {
            out.line(header(now))?;
        }
        out.line(&change_line(before, now, time))
    };
    each_interval((args.every, args.count), &progress, before, now, print, out).map(drop)
}

fn header(now: &DriveStats) -> &'static str {
    match now.profile {
        None => "host wrote  host read  discarded flash wrote   WA-D since mark  valid",
        Some(_) => {
            "host wrote  host read  discarded flash wrote   WA-D since mark  valid modelled/s"
        }
    }
}

/// Bytes of an interval, and no rates but modelled ones.
fn change_line(before: &DriveStats, now: &DriveStats, time: Duration) -> String {
    let change = now.life.since(&before.life);
    let mut line = format!(
        "{:>10} {:>10} {:>10} {:>11} {:>6} {:>10} {:>5.1}%",
        size(change.host_written_bytes),
        size(change.host_read_bytes),
        size(change.host_trimmed_bytes),
        size(change.flash_written_bytes),
        ratio(change.wa_d()),
        ratio(now.wa_d),
        100.0 * now.valid_pages as f64 / now.pages as f64,
    );
    if now.profile.is_some() {
        let bytes = change.host_written_bytes + change.host_read_bytes;
        line += &format!(" {:>10}", size((bytes as f64 / time.as_secs_f64()) as u64));
    }
    line
}

fn change_json(before: &DriveStats, now: &DriveStats, time: Duration) -> serde_json::Value {
    let change = now.life.since(&before.life);
    let mut document = json!({
        "seconds": time.as_secs_f64(),
        "change": change,
        "wa_d_ratio": change.wa_d(),
        "wa_d_since_mark_ratio": now.wa_d,
        "valid_pages": now.valid_pages,
    });
    if let Some(profile) = &now.profile {
        let per_second = |bytes: u64| bytes as f64 / time.as_secs_f64();
        document["profile"] = profile.as_str().into();
        document["modelled_written_bytes_per_s"] = per_second(change.host_written_bytes).into();
        document["modelled_read_bytes_per_s"] = per_second(change.host_read_bytes).into();
        document["late"] = (now.late - before.late).into();
        document["paced"] = (now.paced - before.paced).into();
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(written: u64, profile: Option<&str>) -> DriveStats {
        let life = Smart {
            host_written_bytes: written,
            flash_written_bytes: 3 * written,
            host_read_bytes: written,
            host_trimmed_bytes: written,
            ..Smart::default()
        };
        DriveStats {
            capacity_bytes: 1 << 40,
            over_provisioning: 0.125,
            superblock_bytes: 8 << 20,
            superblocks: 1 << 17,
            policy: "greedy".into(),
            cache_bytes: 4 << 20,
            declared: DeclaredState::Preconditioned,
            used: true,
            valid_pages: 1 << 28,
            pages: 1 << 28,
            life,
            since_mark: life,
            wa_d_life: life.wa_d(),
            wa_d: life.wa_d(),
            wear_min: 0,
            wear_max: 99_999,
            written_share: 1.0,
            kills: 0,
            pid: Some(1),
            profile: profile.map(str::to_owned),
            modelled_ns: 1,
            paced: 1_000_000,
            late: 1_000_000,
        }
    }

    #[test]
    fn lines_are_no_wider_than_a_terminal_and_stand_below_their_headers() {
        let second = Duration::from_secs(1);
        for profile in [None, Some("consumer-qlc")] {
            let (before, now) = (drive(0, profile), drive(1023 << 30, profile));
            let line = change_line(&before, &now, second);
            assert!(line.chars().count() <= 80, "{line}");
            assert_eq!(line.chars().count(), header(&now).len(), "{line}");
            assert!(line.contains("3.000"), "{line}");
            assert!(change_line(&now, &now, second).contains(" - "));
        }
    }

    #[test]
    fn rates_are_printed_where_a_model_paces_and_said_to_be_modelled() {
        let second = Duration::from_secs(1);
        let json = change_json(&drive(0, None), &drive(9, None), second);
        assert!(!json.to_string().contains("per_s"), "{json}");
        let json = change_json(&drive(0, Some("x")), &drive(9, Some("x")), second);
        assert_eq!(json["modelled_written_bytes_per_s"], 9.0);
        assert!(header(&drive(0, Some("x"))).contains("modelled/s"));
        assert!(modelled(&drive(0, None)).contains("no measurements"));
    }
}
