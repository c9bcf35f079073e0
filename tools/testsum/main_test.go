package main

import (
	"bytes"
	"strings"
	"testing"
)

func run(t *testing.T, in string, noskip bool) (string, bool) {
	t.Helper()
	var out bytes.Buffer
	r := &report{out: &out, output: map[string][]string{}}
	if err := r.read(strings.NewReader(in)); err != nil {
		t.Fatal(err)
	}
	ok := r.summary("demo", noskip)
	return out.String(), ok
}

func TestSummary(t *testing.T) {
	pass := `{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":2}
{"Action":"output","Package":"p","Output":"ok  \tp\t2.0s\n"}
{"Action":"pass","Package":"p","Elapsed":2}
`
	skip := `{"Action":"output","Package":"q","Test":"TestB","Output":"no luck\n"}
{"Action":"skip","Package":"q","Test":"TestB"}
{"Action":"pass","Package":"q"}
`
	fail := `{"Action":"output","Package":"f","Test":"TestC","Output":"=== RUN   chatter\n"}
{"Action":"output","Package":"f","Test":"TestC","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"f","Test":"TestC"}
{"Action":"output","Package":"f","Output":"FAIL\tf\t0.1s\n"}
{"Action":"fail","Package":"f"}
`
	panicked := `{"Action":"output","Package":"x","Test":"TestD","Output":"panic: oh\n"}
{"Action":"fail","Package":"x"}
`
	tests := []struct {
		name, in string
		noskip   bool
		ok       bool
		want     []string
		never    string
	}{
		{"pass", pass, true, true, []string{"ok  \tp\t2.0s", "slow:", "1 passed, 0 failed, 0 skipped"}, "chatter"},
		{"skip allowed", pass + skip, false, true, []string{"skipped: q TestB", "1 passed, 0 failed, 1 skipped"}, "chatter"},
		{"skip refused", pass + skip, true, false, []string{"no luck"}, ""},
		{"fail", pass + fail, false, false, []string{"got 1, want 2", "FAIL\tf", "1 passed, 1 failed"}, "chatter"},
		{"panic", pass + panicked, false, false, []string{"panic: oh", "1 of them failed"}, ""},
		{"nothing", "", false, false, []string{"no test ran"}, ""},
		{"build failure", `{"Action":"build-output","ImportPath":"b","Output":"b.go:1: bad\n"}
{"Action":"fail","Package":"b"}
`, false, false, []string{"b.go:1: bad"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, ok := run(t, tt.in, tt.noskip)
			if ok != tt.ok {
				t.Errorf("ok = %v, want %v:\n%s", ok, tt.ok, out)
			}
			for _, w := range tt.want {
				if !strings.Contains(out, w) {
					t.Errorf("no %q in:\n%s", w, out)
				}
			}
			if tt.never != "" && strings.Contains(out, tt.never) {
				t.Errorf("%q should not be shown:\n%s", tt.never, out)
			}
		})
	}
}
