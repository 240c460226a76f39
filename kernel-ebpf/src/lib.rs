//! Nothing: the library target is the edge that makes cargo rebuild the agent when the programs change.
#![no_std]
