//! Compiles the C side of the WiredTiger adapter, whose API is structures of function pointers.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "wiredtiger")]
    {
        let shim = "src/engine/wiredtiger/shim.c";
        println!("cargo::rerun-if-changed={shim}");
        cc::Build::new()
            .file(shim)
            .warnings(true)
            .warnings_into_errors(true)
            .compile("isobath_wiredtiger");
        println!("cargo::rustc-link-lib=wiredtiger");
    }
}
