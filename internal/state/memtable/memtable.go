// Package memtable reads tables of hashicorp/go-memdb whose rows are pointers
// to one type, by keys that are bytes, without reflection.
package memtable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/hashicorp/go-memdb"
)

// Index computes one index key of a row of type T without reflection.
// Queries pass the raw key bytes.
type Index[T any] struct {
	Key func(*T) []byte // nil: the row is not in the index
}

// FromObject implements memdb.SingleIndexer.
func (x Index[T]) FromObject(raw any) (bool, []byte, error) {
	row, ok := raw.(*T)
	if !ok {
		return false, nil, fmt.Errorf("a %T in a table of %T", raw, row)
	}
	k := x.Key(row)
	return k != nil, k, nil
}

// FromArgs implements memdb.Indexer.
func (x Index[T]) FromArgs(args ...any) ([]byte, error) {
	if len(args) != 1 {
		return nil, errors.New("an index takes one argument")
	}
	k, ok := args[0].([]byte)
	if !ok {
		return nil, fmt.Errorf("a %T as index key", args[0])
	}
	return k, nil
}

// PrefixFromArgs makes prefix queries possible.
func (x Index[T]) PrefixFromArgs(args ...any) ([]byte, error) { return x.FromArgs(args...) }

// Group is the key of all rows that share value; none for an empty one.
func Group(value string) []byte {
	if value == "" {
		return nil
	}
	b := make([]byte, 0, len(value)+1+16)
	return append(append(b, value...), 0)
}

// Instant orders by time: nanoseconds since 1970, sign flipped.
func Instant(t time.Time) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, 8+32), uint64(t.UnixNano())^(1<<63))
}

// First returns the first row under key, nil for none. It and the lists panic
// on an error of memdb, which can only mean a wrong table or index name: every
// test of the caller would meet it.
func First[T any, K ~string](txn *memdb.Txn, t K, index string, key []byte) *T {
	raw, err := txn.First(string(t), index, key)
	if err != nil {
		panic(err)
	}
	row, _ := raw.(*T)
	return row
}

// All lists the rows under key, all of them for nil, in the order of the index.
func All[T any, K ~string](txn *memdb.Txn, t K, index string, key []byte) iter.Seq[*T] {
	return Rows[T](func() (memdb.ResultIterator, error) {
		if key == nil {
			return txn.Get(string(t), index)
		}
		return txn.Get(string(t), index, key)
	})
}

// Rows lists what the iterator that open makes yields.
func Rows[T any](open func() (memdb.ResultIterator, error)) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		it, err := open()
		if err != nil {
			panic(err)
		}
		for raw := it.Next(); raw != nil; raw = it.Next() {
			if !yield(raw.(*T)) { //nolint:forcetypeassert // a table holds one type
				return
			}
		}
	}
}

// Until ends seq before the first row that is not ok.
func Until[T any](seq iter.Seq[T], ok func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		for row := range seq {
			if !ok(row) || !yield(row) {
				return
			}
		}
	}
}
