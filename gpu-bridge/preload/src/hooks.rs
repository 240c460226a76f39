//! The functions that stand in for the driver's. Each takes over what [`State`] says, and is the driver's own otherwise.
//!
//! Nothing unwinds into the program: a panic ends all taking over, and the call goes to the driver.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

use tensortier_bridge::pipeline::Direction;

use crate::{
    counts::add,
    driver::{self, Driver, INVALID_VALUE, NOT_FOUND},
    pinned::{Live, Owner},
    state::State,
};

/// `CU_POINTER_ATTRIBUTE_BUFFER_ID`, `_RANGE_START_ADDR`, `_RANGE_SIZE`: what an extent of the pool has of its own.
const BUFFER: i32 = 7;
const START: i32 = 11;
const SIZE: i32 = 12;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`: other functions, which are not hooked.
const PER_THREAD: u64 = 2;
/// Names are trusted to mean these functions up to CUDA 13; later only addresses are.
const NEWEST: i32 = 14_000;

/// A function of the driver's that has one of ours in its place.
pub struct Hook {
    /// Its symbol.
    pub symbol: &'static CStr,
    /// Its name for `cuGetProcAddress`, and the first version that means this symbol by it.
    base: &'static [u8],
    since: i32,
    /// Ours.
    pub address: *const (),
}

// SAFETY: a function's address and constants.
unsafe impl Sync for Hook {}

/// The state of this process, by the first call that comes.
static STATE: OnceLock<State> = OnceLock::new();

/// `None` as long as the program has loaded no driver.
fn state() -> Option<&'static State> {
    STATE.get().or_else(|| {
        let driver = Driver::loaded();
        driver.context.is_some().then(|| STATE.get_or_init(|| State::new(driver)))
    })
}

/// Runs a hook; where it takes nothing over, or fails, the driver is called.
fn enter(state: &State, hook: impl FnOnce(&State) -> Option<i32>, real: impl Fn(&Driver) -> i32) -> i32 {
    if state.is_here() {
        match catch_unwind(AssertUnwindSafe(|| hook(state))) {
            Ok(Some(code)) => return code,
            Ok(None) => {}
            Err(_) => state.give_up(),
        }
    }
    real(&state.driver)
}

macro_rules! hooks {
    ($($symbol:ident $base:literal $since:literal $field:ident($($arg:ident: $kind:ty),*)
        |$state:ident, $real:ident| $body:expr;)*) => {
        $(
            unsafe extern "C" fn $field($($arg: $kind),*) -> i32 {
                let $real = |driver: &Driver| match driver.$field {
                    // SAFETY: the program's own call, with its own arguments.
                    Some(real) => unsafe { real($($arg),*) },
                    None => NOT_FOUND,
                };
                state().map_or(NOT_FOUND, |state| enter(state, |$state| $body, $real))
            }
        )*

        /// The driver's names, for programs that are linked with it.
        #[allow(non_snake_case, missing_docs, clippy::missing_safety_doc)]
        pub mod exported {
            use super::{c_char, c_void};

            $(
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $symbol($($arg: $kind),*) -> i32 {
                    // SAFETY: as the program promised the driver.
                    unsafe { super::$field($($arg),*) }
                }
            )*
        }

        /// All of them. The functions here are not the exported ones, whose names another library may have taken.
        pub static HOOKS: &[Hook] = &[
            $(Hook {
                symbol: name(concat!(stringify!($symbol), "\0")),
                base: $base,
                since: $since,
                address: $field as *const (),
            }),*
        ];
    };
}

const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("one zero at the end"),
    }
}

hooks! {
    cuGetProcAddress b"cuGetProcAddress" 11030
    get_proc_address(name: *const c_char, to: *mut u64, version: i32, flags: u64)
    |state, real| Some(given(state, real(&state.driver), name, to, version, flags));

    cuGetProcAddress_v2 b"cuGetProcAddress" 12000
    get_proc_address_v2(name: *const c_char, to: *mut u64, version: i32, flags: u64, status: *mut i32)
    |state, real| Some(given(state, real(&state.driver), name, to, version, flags));

    cuMemHostAlloc b"cuMemHostAlloc" 2020
    host_alloc(to: *mut u64, bytes: usize, flags: u32)
    |state, _real| allocate(state, to, bytes, flags);

    cuMemAllocHost_v2 b"cuMemAllocHost" 3020
    alloc_host(to: *mut u64, bytes: usize)
    |state, _real| allocate(state, to, bytes, 0);

    cuMemFreeHost b"cuMemFreeHost" 2000
    free_host(address: u64)
    |state, _real| state.free(address);

    cuMemHostUnregister b"cuMemHostUnregister" 4000
    host_unregister(address: u64)
    |state, _real| state.unregister(address);

    cuMemHostGetFlags b"cuMemHostGetFlags" 2030
    host_flags(to: *mut u32, address: u64)
    |state, real| owned(state, address, to.is_null(), |live| {
        let code = real(&state.driver);
        if code == 0 {
            // SAFETY: the driver has just written there.
            unsafe { to.write(live.flags) };
        }
        code
    });

    cuMemHostGetDevicePointer_v2 b"cuMemHostGetDevicePointer" 3020
    host_device_pointer(to: *mut u64, address: u64, flags: u32)
    |state, real| owned(state, address, to.is_null() || flags != 0, |_| real(&state.driver));

    cuPointerGetAttribute b"cuPointerGetAttribute" 4000
    pointer_attribute(to: *mut c_void, attribute: i32, address: u64)
    |state, real| owned(state, address, to.is_null(), |live| {
        let code = real(&state.driver);
        if code == 0 {
            // SAFETY: the driver has just written this attribute there.
            unsafe { mend(live, attribute, to) };
        }
        code
    });

    cuPointerGetAttributes b"cuPointerGetAttributes" 7000
    pointer_attributes(count: u32, attributes: *const i32, to: *const *mut c_void, address: u64)
    |state, real| all_attributes(state, real(&state.driver), count, attributes, to, address);

    cuMemcpyHtoD_v2 b"cuMemcpyHtoD" 3020
    copy_to_device(to: u64, from: *const c_void, bytes: usize)
    |state, _real| state.copy(Direction::H2d, to, from as u64, bytes, 0);

    cuMemcpyDtoH_v2 b"cuMemcpyDtoH" 3020
    copy_from_device(to: *mut c_void, from: u64, bytes: usize)
    |state, _real| state.copy(Direction::D2h, from, to as u64, bytes, 0);

    cuMemcpyHtoDAsync_v2 b"cuMemcpyHtoDAsync" 3020
    copy_to_device_async(to: u64, from: *const c_void, bytes: usize, stream: u64)
    |state, _real| state.copy(Direction::H2d, to, from as u64, bytes, stream);

    cuMemcpyDtoHAsync_v2 b"cuMemcpyDtoHAsync" 3020
    copy_from_device_async(to: *mut c_void, from: u64, bytes: usize, stream: u64)
    |state, _real| state.copy(Direction::D2h, from, to as u64, bytes, stream);

    cuStreamBeginCapture b"cuStreamBeginCapture" 10000
    begin_capture(stream: u64)
    |state, real| Some(captured(state, true, real(&state.driver)));

    cuStreamBeginCapture_v2 b"cuStreamBeginCapture" 10010
    begin_capture_v2(stream: u64, mode: i32)
    |state, real| Some(captured(state, true, real(&state.driver)));

    cuStreamBeginCaptureToGraph b"cuStreamBeginCaptureToGraph" 12030
    begin_capture_to_graph(
        stream: u64, graph: u64, nodes: *const c_void, edges: *const c_void, count: usize, mode: i32
    )
    |state, real| Some(captured(state, true, real(&state.driver)));

    cuStreamEndCapture b"cuStreamEndCapture" 10000
    end_capture(stream: u64, graph: *mut u64)
    |state, real| Some(captured(state, false, real(&state.driver)));
}

fn captured(state: &State, begins: bool, code: i32) -> i32 {
    state.captured(begins, code);
    code
}

fn allocate(state: &State, to: *mut u64, bytes: usize, flags: u32) -> Option<i32> {
    if to.is_null() {
        return None;
    }
    let address = state.allocate(bytes, flags)?;
    // SAFETY: not null; that it is a pointer's place is the program's promise to the driver.
    unsafe { to.write(address) };
    Some(0)
}

/// A question about an address: of the pool's memory that is no allocation the driver must not tell what it knows.
/// `wrong`: the driver refuses the question anyway.
fn owned(state: &State, address: u64, wrong: bool, ask: impl FnOnce(Live) -> i32) -> Option<i32> {
    match state.owner(address) {
        Owner::Other => None,
        _ if wrong => None,
        Owner::Program(live) => Some(ask(live)),
        Owner::Nobody => Some(match state.driver.status() {
            0 => INVALID_VALUE,
            code => code,
        }),
    }
}

/// Puts an allocation's own attribute in the place of its extent's.
///
/// # Safety
/// The driver has written this attribute to `to`.
unsafe fn mend(live: Live, attribute: i32, to: *mut c_void) {
    let value = match attribute {
        BUFFER => live.buffer,
        START => live.address,
        SIZE => live.bytes,
        _ => return,
    };
    // SAFETY: each of the three is a word of 64 bits.
    unsafe { to.cast::<u64>().write(value) };
}

/// `cuPointerGetAttributes` answers 0 and zeros for addresses that the driver does not know.
fn all_attributes(
    state: &State,
    code: i32,
    count: u32,
    attributes: *const i32,
    to: *const *mut c_void,
    address: u64,
) -> Option<i32> {
    if code != 0 || count == 0 || attributes.is_null() || to.is_null() {
        return Some(code);
    }
    match state.owner(address) {
        Owner::Other => Some(code),
        Owner::Program(live) => {
            for at in 0..count as usize {
                // SAFETY: the driver has just read these `count` entries and written to each.
                unsafe { mend(live, *attributes.add(at), *to.add(at)) };
            }
            Some(code)
        }
        Owner::Nobody => {
            // A word of this library's, which no driver knows, is such an address too.
            static UNKNOWN: u64 = 0;
            let ask = state.driver.pointer_attributes?;
            // SAFETY: the program's own arguments, but for the address.
            Some(unsafe { ask(count, attributes, to, &raw const UNKNOWN as u64) })
        }
    }
}

/// What the program gets of the driver's answer: our function where the driver's has one.
fn given(state: &State, code: i32, name: *const c_char, to: *mut u64, version: i32, flags: u64) -> i32 {
    if code != 0 || name.is_null() || to.is_null() {
        return code;
    }
    // SAFETY: the driver has just read the name and written the address.
    let (name, found) = unsafe { (CStr::from_ptr(name).to_bytes(), *to) };
    if found != 0
        && let Some(hook) = hook_of(name, found, version, flags, |symbol| driver::symbol(symbol) as u64)
    {
        add(&state.counts.given_addresses, 1);
        // SAFETY: as above.
        unsafe { to.write(hook.address as u64) };
    }
    code
}

/// The hook for an answer of `cuGetProcAddress`: the one whose symbol has that address; or the newest of that name, since
/// an answer need not be the symbol's own address.
pub fn hook_of(
    name: &[u8],
    found: u64,
    version: i32,
    flags: u64,
    symbol: impl Fn(&CStr) -> u64,
) -> Option<&'static Hook> {
    let named = || HOOKS.iter().filter(|hook| hook.base == name);
    if let Some(same) = named().find(|hook| symbol(hook.symbol) == found) {
        return Some(same);
    }
    if version >= NEWEST || flags & PER_THREAD != 0 {
        return None;
    }
    named().filter(|hook| hook.since <= version && symbol(hook.symbol) != 0).max_by_key(|hook| hook.since)
}

/// Counters of this process, as [`crate::counts::Counts`] orders them: writes up to `length`, says how many there are.
///
/// # Safety
/// `to` has room for `length` words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensortier_preload_counts(to: *mut u64, length: usize) -> usize {
    let Some(state) = STATE.get() else { return 0 };
    let all = state.counts.all();
    for (at, value) in all.iter().take(length).enumerate() {
        // SAFETY: below `length`.
        unsafe { to.add(at).write(*value) };
    }
    all.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_in_the_drivers_answer() {
        let state = State::new(Driver::default());
        assert_eq!(enter(&state, |_| Some(3), |_| 4), 3);
        assert_eq!(enter(&state, |_| None, |_| 4), 4);
        assert_eq!(enter(&state, |_| panic!("as a test"), |_| 4), 4);
        assert_eq!(state.counts.all().last(), Some(&1));
        assert_eq!(enter(&state, |_| Some(3), |_| 4), 3, "questions are still answered");
    }

    #[test]
    fn without_a_driver_nothing_is_found_and_nothing_is_kept() {
        // SAFETY: no driver is loaded in this test, so nothing is called.
        assert_eq!(unsafe { exported::cuMemFreeHost(0) }, NOT_FOUND);
        assert!(STATE.get().is_none(), "a driver may come later");
    }
}
