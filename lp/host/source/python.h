// Python's objects, as far as the library makes and reads them: functions of its stable interface, which whoever loads
// the library has, so that no header of Python is needed. The caller must hold Python's lock (ctypes.PyDLL).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
struct _object;
typedef struct _object PyObject;
PyObject* PyLong_FromLongLong(long long value);
PyObject* PyList_New(ptrdiff_t size);
int PyList_SetItem(PyObject* list, ptrdiff_t place, PyObject* item);  // takes over the item
PyObject* PyTuple_New(ptrdiff_t size);
int PyTuple_SetItem(PyObject* tuple, ptrdiff_t place, PyObject* item);  // takes over the item
}

// How numpy's arrays begin behind what all objects have, whose size is OBJECT_SIZE: PyArrayObject in its C interface.
struct Array {
    const char* data;
    int num_axes;
    const ptrdiff_t *shape, *strides;  // in bytes
};

inline const Array& array_of(PyObject* array) {
    return *reinterpret_cast<const Array*>(reinterpret_cast<const char*>(array) + OBJECT_SIZE);
}

// A list of numbers.
inline PyObject* list_of(const int64_t* numbers, int64_t count) {
    PyObject* list = PyList_New(count);
    for (int64_t at = 0; list && at < count; ++at) PyList_SetItem(list, at, PyLong_FromLongLong(numbers[at]));
    return list;
}
