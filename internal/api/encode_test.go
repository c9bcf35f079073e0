package api

import (
	"encoding/json"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
)

// The encoder of rows and encoding/json say the same, whatever a row holds.
func TestEncoderAgreesWithTheLibrary(t *testing.T) {
	words := rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[a-z0-9._-]{1,12}`), rapid.String(),
		rapid.SampledFrom([]string{"<b>&", "\"\\", "\x00\x1f", "\u2028", "\xff\xfe", "ü"}))
	zeros := map[string]bool{}
	rapid.Check(t, func(rt *rapid.T) {
		var env gen.Environment
		fill(rt, reflect.ValueOf(&env).Elem(), words)
		for i := range reflect.TypeOf(env).NumField() {
			if reflect.ValueOf(env).Field(i).IsZero() {
				zeros[reflect.TypeOf(env).Field(i).Name] = true
			}
		}
		want, err := json.Marshal(env)
		if err != nil {
			rt.Fatal(err)
		}
		var a, b any
		if err := json.Unmarshal(want, &a); err != nil {
			rt.Fatal(err)
		}
		ours := appendEnvironment([]byte("x"), &env)[1:]
		if err := json.Unmarshal(ours, &b); err != nil {
			rt.Fatalf("%v in %s", err, ours)
		}
		if diff := cmp.Diff(a, b); diff != "" {
			rt.Fatal(diff)
		}
	})
	if want := reflect.TypeFor[gen.Environment]().NumField() - 1; len(zeros) < want { // spec hardly ever is
		t.Errorf("only %d fields of %d were ever empty", len(zeros), want)
	}
}

// fill gives every field of a struct, however deep, a value or none.
func fill(rt *rapid.T, v reflect.Value, words *rapid.Generator[string]) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		at := time.Unix(rapid.Int64Range(0, 4e9).Draw(rt, "s"), rapid.Int64Range(0, 999).Draw(rt, "us")*1000).UTC()
		if rapid.Bool().Draw(rt, "zero") {
			at = time.Time{}
		}
		v.Set(reflect.ValueOf(at))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(rt, v.Field(i), words)
		}
	case reflect.Pointer:
		if rapid.Bool().Draw(rt, "nil") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(rt, v.Elem(), words)
		}
	case reflect.Slice:
		n := rapid.IntRange(0, 3).Draw(rt, "n")
		if n == 0 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(rt, v.Index(i), words)
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(rapid.MapOfN(words, words, 0, 3).Draw(rt, "map")))
	case reflect.String:
		v.SetString(words.Draw(rt, "s"))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(rapid.Int64Range(-1<<31, 1<<31-1).Draw(rt, "i") * rapid.Int64Range(0, 1).Draw(rt, "z"))
	case reflect.Float64:
		v.SetFloat(float64(rapid.Int64Range(0, 1<<40).Draw(rt, "us")) / 1000)
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(rt, "b"))
	default:
		rt.Fatalf("a kind of field that the encoder does not know: %s", v.Kind())
	}
}

// Every number of microseconds reads back as it was, and as the library
// writes it.
func TestMillisecondsAreExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		us := rapid.Int64Range(0, 1<<40).Draw(rt, "us")
		ms := float64(us) / 1000
		want := strconv.FormatFloat(ms, 'f', -1, 64)
		if got := string(appendMs(nil, ms)); got != want {
			rt.Fatalf("%d us: %s, want %s", us, got, want)
		}
		// Zero has one sign here: JSON readers do not tell them apart.
		odd := rapid.Float64Range(-1e6, 1e6).Draw(rt, "odd") + 0
		if got := string(appendMs(nil, odd)); got != strconv.FormatFloat(odd, 'f', -1, 64) {
			rt.Fatalf("%v: %s", odd, got)
		}
	})
}

// Rows that are rendered one after another in the same memory do not mix.
func TestARowKeepsNothingOfTheOneBefore(t *testing.T) {
	full := &fleet.VM{
		ID: "a", End: &fleet.Reason{Rule: "r"}, Endpoints: []fleet.Endpoint{{URL: "u"}}, Placement: &fleet.PlacementDecision{HostID: "h"},
		Boot: fleet.BootRecord{Mode: fleet.BootCold, Steps: []fleet.StepTime{{Step: "s", Took: time.Second}}},
	}
	var r row
	for _, vm := range []*fleet.VM{full, {ID: "b"}, full, {ID: "c", Boot: fleet.BootRecord{Mode: fleet.BootSeed}}} {
		got, want := appendEnvironment(nil, r.of(vm)), environmentOf(vm)
		if string(got) != string(appendEnvironment(nil, &want)) {
			t.Errorf("%s: %s", vm.ID, got)
		}
	}
}
