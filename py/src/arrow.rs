// SPDX-License-Identifier: GPL-2.0-only
//! Tables for Python, which readers of Arrow take over without a copy.
//!
//! Owns: the three structs of Arrow's C data interface, which are declared here because the crate
//! `arrow` has a licence (Apache-2.0 alone) that does not allow linking with GPL-2.0-only.
//! A table is one batch of columns. Each exported struct holds a reference to it, and gives it back
//! in its release function.
//! Models: the C data interface and the C stream interface of Apache Arrow, and its PyCapsule
//! protocol.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use scxlab_results::parquet::{self, Values};

/// A table of results. `pyarrow.table`, `polars.DataFrame` and `pandas.DataFrame.from_arrow` read
/// it without a copy.
#[pyclass(frozen, module = "scxlab")]
pub struct Table(Arc<Batch>);

/// Columns of equal length, in Arrow's layout.
struct Batch {
    rows: usize,
    columns: Vec<Column>,
}

struct Column {
    name: CString,
    format: &'static CStr,
    nulls: usize,
    /// A bit for each row that has a value.
    validity: Vec<u8>,
    data: Data,
}

enum Data {
    Int(Vec<i64>),
    Float(Vec<f64>),
    /// A bit for each row.
    Bool(Vec<u8>),
    /// The begin of each row's text, and the end of the last one; all texts.
    Text(Vec<i64>, Vec<u8>),
}

impl Column {
    fn new(column: parquet::Column) -> Column {
        let (format, nulls, validity, data) = match column.values {
            Values::Int(all) => {
                let data = all.iter().map(|n| n.unwrap_or_default()).collect();
                (c"l", nulls(&all), bits(&all, Option::is_some), Data::Int(data))
            }
            Values::Float(all) => {
                let data = all.iter().map(|x| x.unwrap_or_default()).collect();
                (c"g", nulls(&all), bits(&all, Option::is_some), Data::Float(data))
            }
            Values::Bool(all) => {
                let data = bits(&all, |is| *is == Some(true));
                (c"b", nulls(&all), bits(&all, Option::is_some), Data::Bool(data))
            }
            Values::Text(all) => {
                let mut ends = vec![0];
                let mut texts = Vec::new();
                for text in &all {
                    texts.extend_from_slice(text.as_deref().unwrap_or_default().as_bytes());
                    ends.push(texts.len() as i64);
                }
                (c"U", nulls(&all), bits(&all, Option::is_some), Data::Text(ends, texts))
            }
        };
        // A name cannot contain the byte 0, which no file of results has.
        let name = CString::new(column.name.replace('\0', "")).unwrap_or_default();
        Column { name, format, nulls, validity, data }
    }

    /// Returns the addresses of the buffers in Arrow's order.
    fn buffers(&self) -> Vec<*const c_void> {
        let validity = match self.nulls {
            0 => ptr::null(),
            _ => self.validity.as_ptr().cast(),
        };
        match &self.data {
            Data::Int(all) => vec![validity, all.as_ptr().cast()],
            Data::Float(all) => vec![validity, all.as_ptr().cast()],
            Data::Bool(all) => vec![validity, all.as_ptr().cast()],
            Data::Text(ends, texts) => {
                vec![validity, ends.as_ptr().cast(), texts.as_ptr().cast()]
            }
        }
    }

    fn is_valid(&self, row: usize) -> bool {
        bit(&self.validity, row)
    }
}

fn nulls<T>(all: &[Option<T>]) -> usize {
    all.iter().filter(|value| value.is_none()).count()
}

fn bits<T>(all: &[T], is_set: impl Fn(&T) -> bool) -> Vec<u8> {
    let byte = |eight: &[T]| {
        eight.iter().enumerate().fold(0, |sum, (at, value)| sum | u8::from(is_set(value)) << at)
    };
    all.chunks(8).map(byte).collect()
}

fn bit(bits: &[u8], at: usize) -> bool {
    bits[at / 8] >> (at % 8) & 1 == 1
}

impl Table {
    pub fn new(table: parquet::Table) -> Table {
        let rows = table.rows();
        Table(Arc::new(Batch {
            rows,
            columns: table.columns.into_iter().map(Column::new).collect(),
        }))
    }

    fn find(&self, name: &str) -> PyResult<&Column> {
        let found = self.0.columns.iter().find(|column| column.name.to_bytes() == name.as_bytes());
        found.ok_or_else(|| {
            let names = self.column_names().join(", ");
            PyKeyError::new_err(format!("no column \"{name}\"; there are {names}"))
        })
    }
}

#[pymethods]
impl Table {
    #[getter]
    fn num_rows(&self) -> usize {
        self.0.rows
    }

    #[getter]
    fn column_names(&self) -> Vec<String> {
        let name = |column: &Column| column.name.to_string_lossy().into_owned();
        self.0.columns.iter().map(name).collect()
    }

    fn __len__(&self) -> usize {
        self.0.rows
    }

    fn __repr__(&self) -> String {
        format!("<scxlab.Table of {} rows: {}>", self.0.rows, self.column_names().join(", "))
    }

    /// Returns a column as a list, with None for null.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        let column = self.find(name)?;
        let list = PyList::empty(py);
        for row in 0..self.0.rows {
            if !column.is_valid(row) {
                list.append(py.None())?;
                continue;
            }
            match &column.data {
                Data::Int(all) => list.append(all[row])?,
                Data::Float(all) => list.append(all[row])?,
                Data::Bool(all) => list.append(bit(all, row))?,
                Data::Text(ends, texts) => {
                    let (begin, end) = (ends[row] as usize, ends[row + 1] as usize);
                    list.append(String::from_utf8_lossy(&texts[begin..end]))?;
                }
            }
        }
        Ok(list)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        PyCapsule::new_with_value(py, ArrowSchema::of(&self.0), c"arrow_schema")
    }

    /// Hands the table to a reader of Arrow. The types are as they are, whatever is requested,
    /// which the protocol allows.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        let array = PyCapsule::new_with_value(py, ArrowArray::of(&self.0), c"arrow_array")?;
        Ok((self.__arrow_c_schema__(py)?, array))
    }

    /// Hands the table to a reader of Arrow, as a stream of one batch.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        PyCapsule::new_with_value(py, ArrowArrayStream::of(&self.0), c"arrow_array_stream")
    }
}

#[repr(C)]
struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private_data: *mut c_void,
}

/// Flag of a field that may be null.
const NULLABLE: i64 = 2;

/// What an exported schema or array keeps alive.
struct Kept<T> {
    /// Never read: it holds the memory to which the struct points.
    _batch: Arc<Batch>,
    children: Vec<*mut T>,
    buffers: Vec<*const c_void>,
}

impl ArrowSchema {
    fn of(batch: &Arc<Batch>) -> ArrowSchema {
        let child = |column: &Column| {
            let name = column.name.as_ptr();
            Box::into_raw(Box::new(ArrowSchema::with(batch, column.format, name, Vec::new())))
        };
        let children = batch.columns.iter().map(child).collect();
        ArrowSchema::with(batch, c"+s", c"".as_ptr(), children)
    }

    fn with(
        batch: &Arc<Batch>,
        format: &'static CStr,
        name: *const c_char,
        children: Vec<*mut ArrowSchema>,
    ) -> ArrowSchema {
        let mut kept = Box::new(Kept { _batch: batch.clone(), children, buffers: Vec::new() });
        ArrowSchema {
            format: format.as_ptr(),
            name,
            metadata: ptr::null(),
            flags: NULLABLE,
            n_children: kept.children.len() as i64,
            children: kept.children.as_mut_ptr(),
            dictionary: ptr::null_mut(),
            release: Some(release_schema),
            private_data: Box::into_raw(kept).cast(),
        }
    }
}

/// Releases a schema and those of its children that nobody has taken over.
unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the interface calls this once, with a struct that `ArrowSchema::with` made.
    unsafe {
        let kept = Box::from_raw((*schema).private_data.cast::<Kept<ArrowSchema>>());
        kept.children.iter().for_each(|child| drop(Box::from_raw(*child)));
        (*schema).release = None;
    }
}

impl Drop for ArrowSchema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: a struct with a release function has not been released.
            unsafe { release(self) }
        }
    }
}

// SAFETY: the struct owns its children, and shares only memory that nobody writes.
unsafe impl Send for ArrowSchema {}

#[repr(C)]
struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

impl ArrowArray {
    fn of(batch: &Arc<Batch>) -> ArrowArray {
        let child = |column: &Column| {
            let array = ArrowArray::with(batch, column.nulls, column.buffers(), Vec::new());
            Box::into_raw(Box::new(array))
        };
        let children = batch.columns.iter().map(child).collect();
        ArrowArray::with(batch, 0, vec![ptr::null()], children)
    }

    fn with(
        batch: &Arc<Batch>,
        nulls: usize,
        buffers: Vec<*const c_void>,
        children: Vec<*mut ArrowArray>,
    ) -> ArrowArray {
        let mut kept = Box::new(Kept { _batch: batch.clone(), children, buffers });
        ArrowArray {
            length: batch.rows as i64,
            null_count: nulls as i64,
            offset: 0,
            n_buffers: kept.buffers.len() as i64,
            n_children: kept.children.len() as i64,
            buffers: kept.buffers.as_mut_ptr(),
            children: kept.children.as_mut_ptr(),
            dictionary: ptr::null_mut(),
            release: Some(release_array),
            private_data: Box::into_raw(kept).cast(),
        }
    }
}

/// Releases an array and those of its children that nobody has taken over.
unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: the interface calls this once, with a struct that `ArrowArray::with` made.
    unsafe {
        let kept = Box::from_raw((*array).private_data.cast::<Kept<ArrowArray>>());
        kept.children.iter().for_each(|child| drop(Box::from_raw(*child)));
        (*array).release = None;
    }
}

impl Drop for ArrowArray {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: a struct with a release function has not been released.
            unsafe { release(self) }
        }
    }
}

// SAFETY: the struct owns its children, and shares only memory that nobody writes.
unsafe impl Send for ArrowArray {}

#[repr(C)]
struct ArrowArrayStream {
    get_schema: unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowSchema) -> c_int,
    get_next: unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowArray) -> c_int,
    get_last_error: unsafe extern "C" fn(*mut ArrowArrayStream) -> *const c_char,
    release: Option<unsafe extern "C" fn(*mut ArrowArrayStream)>,
    private_data: *mut c_void,
}

struct Stream {
    batch: Arc<Batch>,
    is_over: bool,
}

impl ArrowArrayStream {
    fn of(batch: &Arc<Batch>) -> ArrowArrayStream {
        let stream = Box::new(Stream { batch: batch.clone(), is_over: false });
        ArrowArrayStream {
            get_schema,
            get_next,
            get_last_error,
            release: Some(release_stream),
            private_data: Box::into_raw(stream).cast(),
        }
    }
}

unsafe extern "C" fn get_schema(stream: *mut ArrowArrayStream, out: *mut ArrowSchema) -> c_int {
    // SAFETY: the caller passes a stream that is not released, and room for a schema.
    unsafe {
        let stream = &*(*stream).private_data.cast::<Stream>();
        ptr::write(out, ArrowSchema::of(&stream.batch));
    }
    0
}

unsafe extern "C" fn get_next(stream: *mut ArrowArrayStream, out: *mut ArrowArray) -> c_int {
    // SAFETY: the caller passes a stream that is not released, and room for an array.
    unsafe {
        let stream = &mut *(*stream).private_data.cast::<Stream>();
        let mut array = ArrowArray::of(&stream.batch);
        if std::mem::replace(&mut stream.is_over, true) {
            // A released array marks the end.
            release_array(&mut array);
        }
        ptr::write(out, array);
    }
    0
}

/// Nothing can fail.
unsafe extern "C" fn get_last_error(_: *mut ArrowArrayStream) -> *const c_char {
    ptr::null()
}

unsafe extern "C" fn release_stream(stream: *mut ArrowArrayStream) {
    // SAFETY: the interface calls this once, with a struct that `ArrowArrayStream::of` made.
    unsafe {
        drop(Box::from_raw((*stream).private_data.cast::<Stream>()));
        (*stream).release = None;
    }
}

impl Drop for ArrowArrayStream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: a struct with a release function has not been released.
            unsafe { release(self) }
        }
    }
}

// SAFETY: the struct owns its batch's reference, and the batch is never written.
unsafe impl Send for ArrowArrayStream {}
