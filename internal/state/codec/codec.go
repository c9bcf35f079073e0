// Package codec renders rows as the versioned JSON documents that journals
// store, and reads documents of every version up to the current one.
package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
)

// upcaster changes a stored document of one version into the next.
type upcaster func(doc map[string]json.RawMessage) error

// upcasters holds, for each table of rows, the steps from version 1 on. A document's
// current version is one more than their number. A field that is added needs
// none; one that is renamed, or whose meaning changes, does.
var upcasters = map[string][]upcaster{}

func version(t string) int { return 1 + len(upcasters[t]) }

// encoder renders documents one after another in the same memory.
type encoder struct {
	buf  bytes.Buffer
	json *json.Encoder // into buf
}

var encoders = sync.Pool{New: func() any {
	e := &encoder{}
	e.json = json.NewEncoder(&e.buf)
	return e
}}

// keptEncoder is the largest buffer that is kept for the next document, in
// bytes: a startup log's is far larger than the rest.
const keptEncoder = 64 << 10

// Encode renders a row of table t as the JSON document that journals store: the
// row's own fields behind the version "v".
func Encode[T ~string](t T, row any) (string, error) {
	e := encoders.Get().(*encoder) //nolint:forcetypeassert // the pool holds one type
	defer func() {
		if e.buf.Cap() <= keptEncoder {
			encoders.Put(e)
		}
	}()
	e.buf.Reset()
	e.buf.WriteString(`{"v":`)
	e.buf.WriteString(strconv.Itoa(version(string(t))))
	at := e.buf.Len()
	if err := e.json.Encode(row); err != nil {
		return "", fmt.Errorf("encode %s: %w", t, err)
	}
	doc := bytes.TrimSuffix(e.buf.Bytes(), []byte("\n"))
	if len(doc) == at+len("{}") {
		return string(doc[:at]) + "}", nil
	}
	doc[at] = ',' // was the row's own opening brace
	return string(doc), nil
}

// Decode reads a document of table t of any version up to the current one. It
// refuses a newer one, which this binary would damage by writing it back.
func Decode[R any, T ~string](t T, doc []byte) (*R, error) {
	current := version(string(t))
	if !bytes.HasPrefix(doc, []byte(`{"v":`+strconv.Itoa(current)+`,`)) {
		var err error
		if doc, err = upcast(string(t), doc); err != nil {
			return nil, err
		}
	}
	row := new(R)
	if err := json.Unmarshal(doc, row); err != nil {
		return nil, fmt.Errorf("decode %s: %w", t, err)
	}
	return row, nil
}

func upcast(t string, doc []byte) ([]byte, error) {
	fields := map[string]json.RawMessage{}
	has := 0
	if err := json.Unmarshal(doc, &fields); err != nil {
		return nil, fmt.Errorf("decode %s: %w", t, err)
	}
	if err := json.Unmarshal(fields["v"], &has); err != nil || has < 1 {
		return nil, fmt.Errorf("decode %s: the document has no version", t)
	}
	if current := version(t); has > current {
		return nil, fleet.Errorf(fleet.CodeInternal, "a row of %s has version %d, this binary knows up to %d", t, has, current).
			With(fleet.DetailRemedy, "start the newer binary that wrote it")
	}
	for i, step := range upcasters[t][has-1:] {
		if err := step(fields); err != nil {
			return nil, fmt.Errorf("raise %s from version %d: %w", t, has+i, err)
		}
	}
	delete(fields, "v")
	return json.Marshal(fields)
}
