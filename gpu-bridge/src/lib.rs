//! The GPU bridge: host memory for tensors, placed by what touches them, and copies between it and a GPU.
//!
//! ```text
//! pool/      objects on DRAM nodes, CXL nodes and device-dax; each extent registered once
//! pipeline/  copies in chunks through a pinned ring, both ways at once; what is needed next is copied ahead
//! device/    the CUDA driver, loaded at run time, and copy threads
//! execute/   a planner's plan on a device, with real bytes and checksums of all that is read
//! agent      the link to the agent: where this process's memory is, what it copies
//! measure    what this host's paths to the GPU deliver
//! offload/   a training step that offloads, simulated: ZeRO-Infinity on drives against this bridge
//! ```
//!
//! What is known of the system that this follows is an abstract ("Efficient Tensor Offloading Based on CXL Memory Pool",
//! IEEE TC 75(4), 2026, doi 10.1109/tc.2026.3657493). It names three parts: NUMA-aware memory allocation, Dynamic
//! Adaptive Pipelining "to enhance communication–computation overlap", and hybrid object-based memory management "to
//! mitigate fragmentation and improve allocation efficiency". What an object is, which sizes go where and what the
//! pipeline adapts are not in it: all of that here is our design.

pub mod agent;
pub mod device;
pub mod execute;
pub mod measure;
pub mod offload;
pub mod pipeline;
pub mod pool;
