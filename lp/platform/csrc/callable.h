// Makes functions of C++ callable from Python, which costs a tenth of a call by ctypes, and a twentieth with cold caches.
//
// Arguments and results are numbers, addresses (Python has them as numbers too) and Python's objects.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "python.h"

template <class Value>
Value from_python(PyObject* given) {
    if constexpr (std::is_same_v<Value, PyObject*>)
        return given;
    else if constexpr (std::is_pointer_v<Value>)
        return static_cast<Value>(PyLong_AsVoidPtr(given));
    else if constexpr (std::is_floating_point_v<Value>)
        return PyFloat_AsDouble(given);
    else
        return static_cast<Value>(PyLong_AsLongLong(given));
}

inline PyObject* to_python(PyObject* made) { return made; }
inline PyObject* to_python(int64_t number) { return PyLong_FromLongLong(number); }
inline PyObject* to_python(const void* address) { return PyLong_FromVoidPtr(const_cast<void*>(address)); }

template <auto function>
struct Callable;

template <class Result, class... Given, Result (*function)(Given...)>
struct Callable<function> {
    static PyObject* call(PyObject*, PyObject* const* given, ptrdiff_t count) {
        if (count == ptrdiff_t(sizeof...(Given))) return call_with(given, std::index_sequence_for<Given...>{});
        PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
        return nullptr;
    }

private:
    template <size_t... places>
    static PyObject* call_with(PyObject* const* given, std::index_sequence<places...>) {
        const std::tuple<Given...> values{from_python<Given>(given[places])...};
        if (PyErr_Occurred()) return nullptr;
        if constexpr (std::is_void_v<Result>) {
            function(std::get<places>(values)...);
            Py_IncRef(&_Py_NoneStruct);
            return &_Py_NoneStruct;
        } else {
            return to_python(function(std::get<places>(values)...));
        }
    }
};

constexpr int METH_FASTCALL = 0x80;

template <auto function>
constexpr PyMethodDef callable(const char* name) {
    return {name, Callable<function>::call, METH_FASTCALL, nullptr};
}

// A dict of functions by their names.
template <size_t count>
PyObject* dict_of(PyMethodDef (&functions)[count]) {
    PyObject* found = PyDict_New();
    for (PyMethodDef& definition : functions) {
        PyObject* function = PyCFunction_NewEx(&definition, nullptr, nullptr);
        PyDict_SetItemString(found, definition.name, function);
        Py_DecRef(function);
    }
    return found;
}
