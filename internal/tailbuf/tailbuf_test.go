package tailbuf

import (
	"testing"

	"pgregory.net/rapid"
)

func TestTailKeepsTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out := &Buffer{Limit: rapid.IntRange(1, 20).Draw(t, "limit")}
		var all []byte
		for _, p := range rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 50)).Draw(t, "writes") {
			if n, err := out.Write(p); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
			all = append(all, p...)
		}
		got, cut := out.Bytes()
		want := all[max(0, len(all)-out.Limit):]
		if string(got) != string(want) || cut != (len(all) > out.Limit) {
			t.Fatalf("%q cut %v, want %q of %d", got, cut, want, len(all))
		}
	})
}
