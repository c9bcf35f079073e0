package web

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// MaxNamedFields bounds how many unknown fields a warning names.
const MaxNamedFields = 10

// Decode reads a JSON body into the struct that into points to. Unknown fields
// are named in a Warning header and the log: callers of other versions send
// some.
func Decode(w http.ResponseWriter, r *Request, into any) error {
	unknown, err := DecodeJSON(r.Payload, into)
	if err != nil {
		return err
	}
	if len(unknown) > 0 {
		Warn(w, "unknown fields ignored: "+strings.Join(unknown, " "))
		r.Log.Info("unknown fields ignored", slog.Any("fields", unknown), slog.String("path", r.URL.Path), slog.String("request_id", r.ID))
	}
	return nil
}

// Warn adds a Warning header, which the command line shows; text has no quotes.
func Warn(w http.ResponseWriter, text string) {
	w.Header().Add("Warning", `299 fuse "`+text+`"`)
}

// DecodeJSON reads one JSON object and returns the names of fields that the
// struct does not have.
func DecodeJSON(body []byte, into any) (unknown []string, err error) {
	if t := bytes.TrimLeft(body, " \t\r\n"); len(t) == 0 || t[0] != '{' {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "the body must be a JSON object")
	}
	strict := json.NewDecoder(bytes.NewReader(body))
	strict.DisallowUnknownFields()
	err = strict.Decode(into)
	if err == nil {
		if _, err := strict.Token(); !errors.Is(err, io.EOF) {
			return nil, fleet.Errorf(fleet.CodeInvalidArgument, "the body goes on after its JSON object")
		}
		return nil, nil
	}
	// Either something is unknown or something is wrong: the lenient way tells.
	into = reset(into)
	if err := json.Unmarshal(body, into); err != nil {
		return nil, badJSON(err)
	}
	unknown = unknownFields(body, reflect.TypeOf(into).Elem(), "")
	slices.Sort(unknown)
	if len(unknown) > MaxNamedFields {
		unknown = append(unknown[:MaxNamedFields], fmt.Sprintf("and %d more", len(unknown)-MaxNamedFields))
	}
	return unknown, nil
}

// reset empties what a failed attempt may have filled.
func reset(into any) any {
	reflect.ValueOf(into).Elem().SetZero()
	return into
}

func badJSON(err error) error {
	var typ *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &typ) && typ.Field != "":
		return fleet.Errorf(fleet.CodeInvalidArgument, "%.200s cannot be a JSON %.40s", printable(typ.Field), typ.Value).
			With(fleet.DetailScope, printable(typ.Field)).With(fleet.DetailLimit, wireType(typ.Type))
	case errors.As(err, &syntax):
		return fleet.Errorf(fleet.CodeInvalidArgument, "the body is not JSON: %s at byte %d", syntax, syntax.Offset)
	}
	// Base64 that does not decode, a body that breaks off.
	return fleet.Wrap(fleet.CodeInvalidArgument, err, "the body is not as it should be: "+printable(err.Error()))
}

func wireType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Int32:
		return "integer of 32 bits"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Bool:
		return "boolean"
	case reflect.Map, reflect.Struct:
		return "object"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "base64 text"
		}
		return "array"
	default:
		return "string"
	}
}

// unknownFields walks an object beside the struct that it was read into.
func unknownFields(raw json.RawMessage, t reflect.Type, at string) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Slice && isStruct(t.Elem()):
		var items []json.RawMessage
		if json.Unmarshal(raw, &items) != nil {
			return nil
		}
		var out []string
		for _, item := range items {
			out = append(out, unknownFields(item, t.Elem(), at)...)
		}
		slices.Sort(out)
		return slices.Compact(out)
	case !isStruct(t):
		return nil
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return nil
	}
	known := fieldTypes(t)
	var out []string
	for name, value := range object {
		if ft, ok := known[strings.ToLower(name)]; ok {
			out = append(out, unknownFields(value, ft, at+name+".")...)
		} else {
			out = append(out, at+printable(name))
		}
	}
	return out
}

func isStruct(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct
}

func fieldTypes(t reflect.Type) map[string]reflect.Type {
	out := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		out[strings.ToLower(name)] = t.Field(i).Type
	}
	return out
}

// printable makes a caller's text fit for a header and a message.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == '"' || r == '\\' {
			return '_'
		}
		return r
	}, s[:min(len(s), 400)])
	return s[:min(len(s), 80)]
}

// BodyHash is what an Idempotency-Key is held to.
func (r *Request) BodyHash() string {
	sum := sha256.Sum256(r.Payload)
	return hex.EncodeToString(sum[:])
}

// ReadBody reads the whole body, bounded in size and time, before anything
// looks at it: a body that is too large is refused as such whatever is in it.
func (r *Request) ReadBody(w *Writer, within time.Duration) error {
	if r.ContentLength == 0 {
		return nil
	}
	limit := r.Route.BodyLimit
	if r.ContentLength > int64(limit) {
		w.Header().Set("Connection", "close")
		r.drain()
		return tooLarge(limit)
	}
	var err error
	r.Payload, err = io.ReadAll(http.MaxBytesReader(w.ResponseWriter, r.Body, int64(limit)))
	var over *http.MaxBytesError
	switch {
	case err == nil:
		w.SetReadDeadline(time.Time{})
		return nil
	case errors.As(err, &over):
		r.drain()
		return tooLarge(limit)
	default:
		w.Header().Set("Connection", "close")
		return fleet.Wrap(fleet.CodeInvalidArgument, err, "the body could not be read").
			With(fleet.DetailLimit, "complete within "+within.String())
	}
}

// drainLimit bounds what is read of a body that is refused already.
const drainLimit = 16 << 20

// drain takes in a refused body, up to a limit and the read deadline: a client
// whose writing is cut off sees a reset connection instead of the refusal.
func (r *Request) drain() {
	_, _ = io.CopyN(io.Discard, r.Body, drainLimit) // what is missing is not wanted
}

func tooLarge(limit int) error {
	return fleet.Errorf(fleet.CodePayloadTooLarge, "the body has more than %d bytes", limit).
		With(fleet.DetailLimit, strconv.Itoa(limit)+" bytes")
}
