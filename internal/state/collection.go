package state

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/hashicorp/go-memdb"

	"github.com/fusevm/fuse/internal/state/codec"
	"github.com/fusevm/fuse/internal/state/memtable"
)

// Collections are the tables of documents whose type a service gives. Each is
// a table of every journal: a new one needs a migration.
var Collections = []Table{
	"api_keys", "webhooks", "deliveries", "settings",
	"marquees", "playgrounds", "playground_operations",
	"trick_schedules", "notification_routes", "notifications", "notification_states",
	"playground_secrets", "git_hooks", "playground_templates", "playground_previews",
}

// Document is a row of a collection.
type Document struct {
	ID        string
	UpdatedAt time.Time
	Value     any // pointer to the collection's type; its JSON while no program part knows the type
}

func documentKey(d *Document) Key { return Key{d.ID} }

// decoders holds what reads a collection's documents; filled while packages
// are initialized, read afterwards.
var decoders = map[Table]func(doc []byte) (any, error){}

// LoadDocument makes the row of collection t out of its stored JSON, for
// journals.
func LoadDocument(t Table, id string, at time.Time, doc []byte) (*Document, error) {
	d := &Document{ID: id, UpdatedAt: at.UTC()}
	decode, ok := decoders[t]
	if !ok {
		d.Value = json.RawMessage(slices.Clone(doc))
		return d, nil
	}
	var err error
	if d.Value, err = decode(doc); err != nil {
		return nil, fmt.Errorf("%s %q: %w", t, id, err)
	}
	return d, nil
}

// Encode renders the value as journals store it, with its version.
func (d *Document) Encode(t Table) (string, error) {
	if raw, ok := d.Value.(json.RawMessage); ok {
		return string(raw), nil
	}
	return codec.Encode(t, d.Value)
}

// Collection is a table of documents of type T, each under an id. It is
// declared once, as a variable of the package that the documents belong to.
type Collection[T any] struct{ table Table }

// NewCollection declares the type of a collection's documents. A name that is
// none of Collections, or declared twice, is a mistake in the program.
func NewCollection[T any](name Table) Collection[T] {
	if !slices.Contains(Collections, name) || decoders[name] != nil {
		panic(fmt.Sprintf("state: collection %q is unknown or declared twice", name))
	}
	decoders[name] = func(doc []byte) (any, error) { return codec.Decode[T](name, doc) }
	return Collection[T]{name}
}

// Reader is a *ReadTx or a *Tx.
type Reader interface{ live() *memdb.Txn }

// Table is the collection's name, as change sets give it.
func (c Collection[T]) Table() Table { return c.table }

// Get returns the document of that id. It must not be changed.
func (c Collection[T]) Get(tx Reader, id string) (*T, bool) {
	d, ok := get[Document](tx.live(), c.table, Key{id})
	if !ok {
		return nil, false
	}
	return c.value(d), true
}

// All lists the documents by id.
func (c Collection[T]) All(tx Reader) iter.Seq2[string, *T] { return c.After(tx, "") }

// After lists the documents whose id is greater than id, by id.
func (c Collection[T]) After(tx Reader, id string) iter.Seq2[string, *T] {
	return c.pairs(func() (memdb.ResultIterator, error) {
		return tx.live().LowerBound(string(c.table), byID, append([]byte(id), 0))
	})
}

// Prefix lists the documents whose id begins with prefix, by id.
func (c Collection[T]) Prefix(tx Reader, prefix string) iter.Seq2[string, *T] {
	return c.pairs(func() (memdb.ResultIterator, error) {
		return tx.live().Get(string(c.table), byID+"_prefix", []byte(prefix))
	})
}

// Len is the number of documents.
func (c Collection[T]) Len(tx Reader) (n int) {
	for range c.All(tx) {
		n++
	}
	return n
}

// Put inserts or replaces a document by a copy of v.
func (c Collection[T]) Put(tx *Tx, id string, v *T) error {
	value := *v
	return put(tx, c.table, documentKey, &Document{ID: id, UpdatedAt: tx.now, Value: &value})
}

// Delete removes a document; one that is not there is no error.
func (c Collection[T]) Delete(tx *Tx, id string) error {
	return drop[Document](tx, c.table, Key{id})
}

func (c Collection[T]) value(d *Document) *T { return d.Value.(*T) } //nolint:forcetypeassert // a table holds one type

func (c Collection[T]) pairs(open func() (memdb.ResultIterator, error)) iter.Seq2[string, *T] {
	return func(yield func(string, *T) bool) {
		for d := range memtable.Rows[Document](open) {
			if !yield(d.ID, c.value(d)) {
				return
			}
		}
	}
}

// DocumentID names a document in a ChangeSet.
type DocumentID struct {
	Table Table
	ID    string
}

// addDocument notes a document that an Update changed.
func (c *ChangeSet) addDocument(t Table, id string) {
	if d := (DocumentID{t, id}); !slices.Contains(c.Documents, d) {
		c.Documents = append(c.Documents, d)
	}
}
