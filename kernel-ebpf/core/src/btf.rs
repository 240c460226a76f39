//! What the kernel's type information tells of its tracepoints.

use libbpf_rs::btf::{
    Btf,
    types::{Func, FuncProto},
};

/// The names of a tracepoint's arguments, in the order in which a raw tracepoint program gets them; `None` where the
/// kernel has no type information (BTF) or none about it.
///
/// Minimum kernel: 5.2 with CONFIG_DEBUG_INFO_BTF.
pub fn tracepoint_arguments(name: &str) -> Option<Vec<String>> {
    let btf = Btf::from_vmlinux().ok()?;
    // The function that calls BPF programs on the tracepoint (include/trace/bpf_probe.h): its arguments are the
    // tracepoint's, after one of its own.
    let function = btf.type_by_name::<Func>(&format!("__bpf_trace_{name}"))?;
    let prototype = FuncProto::try_from(function.next_type()?).ok()?;
    prototype.iter().skip(1).map(|argument| Some(argument.name?.to_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracepoint_that_is_not_there_has_no_arguments() {
        assert_eq!(tracepoint_arguments("no_such_tracepoint"), None);
    }
}
