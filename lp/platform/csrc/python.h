// Python's objects, as far as the library makes and reads them: functions of its stable interface, which the
// process that loads the library has, so that no header of Python is needed. The caller must hold Python's lock
// (ctypes.PyDLL).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" {
struct _object;
typedef struct _object PyObject;
extern PyObject _Py_NoneStruct;
extern PyObject* PyExc_TypeError;
PyObject* PyErr_Occurred();
void PyErr_SetString(PyObject* kind, const char* message);
void Py_IncRef(PyObject* object);
void Py_DecRef(PyObject* object);
long long PyLong_AsLongLong(PyObject* number);
void* PyLong_AsVoidPtr(PyObject* number);
double PyFloat_AsDouble(PyObject* number);
PyObject* PyLong_FromLongLong(long long value);
PyObject* PyLong_FromVoidPtr(void* address);
PyObject* PyList_New(ptrdiff_t size);
int PyList_SetItem(PyObject* list, ptrdiff_t place, PyObject* item);  // takes over the item
ptrdiff_t PyList_Size(PyObject* list);
PyObject* PyList_GetItem(PyObject* list, ptrdiff_t place);  // lends the item
ptrdiff_t PyObject_Size(PyObject* sequence);
PyObject* PySequence_GetItem(PyObject* sequence, ptrdiff_t place);
PyObject* PyDict_GetItem(PyObject* dict, PyObject* key);  // lends the item
PyObject* PyTuple_GetItem(PyObject* tuple, ptrdiff_t place);  // lends the item
PyObject* PyTuple_New(ptrdiff_t size);
int PyTuple_SetItem(PyObject* tuple, ptrdiff_t place, PyObject* item);  // takes over the item
PyObject* PyDict_New();
void* PyEval_SaveThread();  // lets other threads of Python run, until RestoreThread
void PyEval_RestoreThread(void* state);
int PyDict_SetItemString(PyObject* dict, const char* key, PyObject* item);

// A function that Python can call. It must live as long as Python does.
struct PyMethodDef {
    const char* name;
    PyObject* (*call)(PyObject* self, PyObject* const* given, ptrdiff_t count);
    int flags;
    const char* text;
};
PyObject* PyCFunction_NewEx(PyMethodDef* definition, PyObject* self, PyObject* module);
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

// The data of an array that may be written to.
template <class Number>
Number* data_of(PyObject* array) {
    return reinterpret_cast<Number*>(const_cast<char*>(array_of(array).data));
}

// Copies the numbers of a list. The result holds until this is called again.
inline const int64_t* numbers_of(PyObject* list) {
    static std::vector<int64_t> numbers;
    numbers.resize(PyList_Size(list));
    for (size_t at = 0; at < numbers.size(); ++at) numbers[at] = PyLong_AsLongLong(PyList_GetItem(list, at));
    return numbers.data();
}

// A list of numbers.
inline PyObject* list_of(const int64_t* numbers, int64_t count) {
    PyObject* list = PyList_New(count);
    for (int64_t at = 0; list && at < count; ++at) PyList_SetItem(list, at, PyLong_FromLongLong(numbers[at]));
    return list;
}
