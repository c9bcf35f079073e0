package guest

import (
	"slices"
	"testing"
)

func TestDetachKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]byte{"ctrl-p,ctrl-q": {16, 17}, "": nil, "~,.": []byte("~."), "ctrl-[": {27}} {
		if got, err := parseKeys(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"ctrl-", "ctrl-1", "long", "a,,b"} {
		if got, err := parseKeys(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestDetector(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pieces []string
		out    string
		detach bool
	}{
		{[]string{"ab", "c"}, "abc", false},
		{[]string{"a\x10", "\x11b"}, "a", true},
		{[]string{"a\x10", "b"}, "a\x10b", false},
		{[]string{"\x10\x10\x11"}, "\x10", true},
		{[]string{"\x10\x10", "x"}, "\x10\x10x", false},
		{[]string{"\x11\x10"}, "\x11", false}, // the last is held back
	} {
		d := &detector{keys: []byte{16, 17}}
		var out []byte
		detach := false
		for _, p := range c.pieces {
			got, now := d.feed([]byte(p))
			out, detach = append(out, got...), detach || now
		}
		if string(out) != c.out || detach != c.detach {
			t.Errorf("%q gives %q, %t", c.pieces, out, detach)
		}
	}
	if out, detach := (&detector{}).feed([]byte("\x10\x11")); string(out) != "\x10\x11" || detach {
		t.Errorf("without keys: %q, %t", out, detach)
	}
}

func TestCutEnv(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]bool{
		"fuse-a:/x": true, "fuse-a.b:/x/y": true, "./fuse-a:/x": false, "/a:/x": false, "file": false, ":/x": false, "a:x": false, "dir/a:/x": false,
	} {
		if env, path, ok := cutEnv(arg); ok != want {
			t.Errorf("%q is %q %q %t", arg, env, path, ok)
		}
	}
}
