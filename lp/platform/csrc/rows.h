// Rows of tables that replicas send each other, as parallel/comm/rows.py has it.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "python.h"

// Writes the rows of a list of arrays, int32 [rows, C], one behind the other. Returns the end of what is written.
inline int32_t* write_rows(PyObject* arrays, int32_t* next) {
    const ptrdiff_t count = PyList_Size(arrays);
    for (ptrdiff_t at = 0; at < count; ++at) {
        const Array& array = array_of(PyList_GetItem(arrays, at));
        for (ptrdiff_t row = 0; row < array.shape[0]; ++row)
            for (ptrdiff_t column = 0; column < array.shape[1]; ++column)
                memcpy(next++, array.data + row * array.strides[0] + column * array.strides[1], sizeof *next);
    }
    return next;
}

// Fills a list of tables by what the replicas have sent, of which each pointer is moved on. If several have sent a row,
// that of the lowest counts.
inline void fill_tables(PyObject* tables, std::vector<const int32_t*>& parts) {
    const ptrdiff_t count = PyList_Size(tables);
    for (ptrdiff_t at = 0; at < count; ++at) {
        PyObject* table = PyList_GetItem(tables, at);
        PyObject *senders = PyTuple_GetItem(table, 0), *numbers = PyTuple_GetItem(table, 1);
        const ptrdiff_t num_columns = array_of(numbers).shape[1];
        int32_t* out = data_of<int32_t>(numbers);
        for (ptrdiff_t replica = ptrdiff_t(parts.size()) - 1; replica >= 0; --replica) {
            PyObject* key = PyLong_FromLongLong(replica);
            PyObject* rows = PyDict_GetItem(senders, key);
            Py_DecRef(key);
            const ptrdiff_t num_rows = rows ? PyObject_Size(rows) : 0;
            for (ptrdiff_t place = 0; place < num_rows; ++place) {
                PyObject* row = PySequence_GetItem(rows, place);
                memcpy(out + PyLong_AsLongLong(row) * num_columns, parts[replica], num_columns * sizeof *out);
                Py_DecRef(row);
                parts[replica] += num_columns;
            }
        }
    }
}
