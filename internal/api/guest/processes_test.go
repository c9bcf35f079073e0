package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/attachframe"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestProcessLife(t *testing.T) {
	w := newWorld(t)
	p := w.process("POST", "/processes", `{"id":"a","shell":"cat; echo err >&2; exit 4","stdin":true,"env":{"X":"1"}}`, 201)
	if p.ID != "a" || p.State != "running" || p.PID == 0 || !p.Stdin || p.ExitCode != nil {
		t.Errorf("started %+v", p)
	}
	if again := w.process("POST", "/processes", `{"id":"a","shell":"echo another"}`, 201); again.PID != p.PID {
		t.Errorf("a repeat started %+v", again)
	}
	for range 2 { // as after a lost answer
		if got := w.want(200, "PUT", "/processes/a/stdin?offset=0", "half "); got != "{\"offset\":5}\n" {
			t.Errorf("input: %s", got)
		}
	}
	if got := w.want(409, "PUT", "/processes/a/stdin?offset=9", "x"); !strings.Contains(got, `"usage":"5"`) {
		t.Errorf("input beyond: %s", got)
	}
	w.want(200, "PUT", "/processes/a/stdin?offset=5&eof=true", "whole")
	p = w.process("GET", "/processes/a?wait_ms=10000", "", 200)
	if p.State != "exited" || p.ExitCode == nil || *p.ExitCode != 4 || p.StdinBytes != 10 || p.Stdout.End != 10 || p.EndedAt.IsZero() {
		t.Errorf("ended %+v", p)
	}
	if got := w.want(200, "GET", "/processes/a/output?stream=stdout", ""); got != "half whole" {
		t.Errorf("output %q", got)
	}
	if got := w.want(200, "GET", "/processes/a/output?stream=stdout&stdout=5", ""); got != "whole" {
		t.Errorf("output from 5 %q", got)
	}
	if got := w.want(200, "GET", "/processes/a/output?stream=stderr", ""); got != "err\n" {
		t.Errorf("errors %q", got)
	}
	var list gen.ProcessList
	if err := json.Unmarshal([]byte(w.want(200, "GET", "/processes", "")), &list); err != nil || len(list.Processes) != 1 {
		t.Errorf("list %+v, %v", list, err)
	}
	w.want(204, "DELETE", "/processes/a", "")
	w.want(404, "GET", "/processes/a", "")
}

func TestProcessSignals(t *testing.T) {
	w := newWorld(t)
	w.process("POST", "/processes", `{"id":"a","cmd":["sleep","600"]}`, 201)
	for name, body := range map[string]string{"unknown": `{"signal":"FOO"}`, "number": `{"signal":"99"}`, "none": `{}`} {
		if got := w.want(400, "POST", "/processes/a?action=signal", body); !strings.Contains(got, "signal") {
			t.Errorf("%s: %s", name, got)
		}
	}
	w.want(409, "POST", "/processes/a?action=resize", `{"rows":1,"cols":1}`)
	w.want(409, "PUT", "/processes/a/stdin?offset=0", "x")
	w.want(204, "POST", "/processes/a?action=signal", `{"signal":"SIGTERM"}`)
	if p := w.process("GET", "/processes/a?wait_ms=10000", "", 200); p.Signal != "TERM" || *p.ExitCode != 143 {
		t.Errorf("ended %+v", p)
	}
	w.want(409, "POST", "/processes/a?action=signal", `{"signal":"15"}`)
	w.want(404, "POST", "/processes/b?action=signal", `{"signal":"15"}`)
	w.want(400, "POST", "/processes/a?action=dance", `{}`)
}

func TestBadProcesses(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"nothing":   {`{}`, 400},
		"both":      {`{"cmd":["a"],"shell":"b"}`, 400},
		"id":        {`{"id":"a/b","cmd":["true"]}`, 400},
		"keep":      {`{"keep_bytes":-1,"cmd":["true"]}`, 400},
		"linger":    {`{"linger_ms":-1,"cmd":["true"]}`, 400},
		"user":      {`{"user":"nobody-here","cmd":["true"]}`, 400},
		"cwd":       {`{"cwd":"/not/there","cmd":["true"]}`, 400},
		"long word": {`{"cmd":["echo","` + strings.Repeat("x", 200<<10) + `"]}`, 400},
	} {
		if got, text := w.do("POST", "/processes", c.body); got != c.status {
			t.Errorf("%s: %d %s", name, got, text)
		}
	}
	for argv, want := range map[string]int{"/not/there": 127, "/etc/passwd": 126} {
		p := w.process("POST", "/processes", fmt.Sprintf(`{"cmd":[%q]}`, argv), 201)
		if p = w.process("GET", "/processes/"+p.ID+"?wait_ms=10000", "", 200); p.ExitCode == nil || *p.ExitCode != want {
			t.Errorf("%s ended with %+v", argv, p)
		}
	}
	for _, query := range []string{"stdout=-1", "limit=x", "follow=maybe", "stream=both", "stdout=99"} {
		w.process("POST", "/processes", `{"id":"a","cmd":["true"]}`, 201)
		if got, text := w.do("GET", "/processes/a/output?"+query, ""); got != 400 {
			t.Errorf("%s: %d %s", query, got, text)
		}
	}
	w.want(404, "GET", "/processes/nothing/output", "")
	w.put(fleet.VMStateDraining)
	w.want(409, "POST", "/processes", `{"cmd":["true"]}`)
}

// TestOutputOverCutConnections reads output over connections that break at a
// random byte of the answer, and gets each byte of both streams once.
func TestOutputOverCutConnections(t *testing.T) {
	w := newWorld(t)
	size := testkit.Count(2<<20, 1<<30)
	file := t.TempDir() + "/data"
	w.process("POST", "/processes", fmt.Sprintf(`{"id":"a","hold":true,"keep_bytes":524288,"shell":"head -c %d /dev/urandom > %s; sha256sum < %s | cut -c1-64 > %s.sum; tee /dev/stderr < %s"}`,
		size, file, file, file, file), 201)
	rng := rand.New(rand.NewPCG(3, 4))
	sums := [2]interface {
		io.Writer
		Sum([]byte) []byte
	}{sha256.New(), sha256.New()}
	var at [2]int64
	cuts, exited := 0, false
	for !exited {
		left := rng.IntN(300 << 10)
		cut, exit := w.readFrames(t, fmt.Sprintf("/processes/a/output?follow=1&limit=262144&stdout=%d&stderr=%d", at[0], at[1]), left, func(typ attachframe.Type, payload []byte) {
			if typ == attachframe.Gap {
				t.Errorf("output is missing: %s", payload)
			}
			if typ == attachframe.Stdout || typ == attachframe.Stderr {
				_, _ = sums[typ-1].Write(payload)
				at[typ-1] += int64(len(payload))
			}
		})
		if cut {
			cuts++
		}
		exited = exit != nil
		if exit != nil && exit.ExitCode != 0 {
			t.Errorf("ended with %+v", exit)
		}
	}
	w.process("POST", "/processes", fmt.Sprintf(`{"id":"sum","cmd":["cat",%q]}`, file+".sum"), 201)
	w.process("GET", "/processes/sum?wait_ms=10000", "", 200)
	want := strings.TrimSpace(w.want(200, "GET", "/processes/sum/output?stream=stdout", ""))
	for i, sum := range sums {
		if got := fmt.Sprintf("%x", sum.Sum(nil)); got != want || at[i] != int64(size) {
			t.Errorf("stream %d: %d bytes of %d, hash %s, not %s", i+1, at[i], size, got, want)
		}
	}
	if cuts == 0 {
		t.Error("no connection was cut")
	}
}

// readFrames reads the whole frames, and the part of the last one, that come
// before left bytes have been read.
func (w *world) readFrames(t *testing.T, path string, left int, take func(attachframe.Type, []byte)) (cut bool, exit *attachframe.ExitStatus) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/v1/environments/fuse-t"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(res.Body)
		t.Fatalf("%s: %d %s", path, res.StatusCode, raw)
	}
	r := io.LimitReader(res.Body, int64(left))
	for {
		var header [attachframe.HeaderSize]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return r.(*io.LimitedReader).N == 0, exit
		}
		typ, size, err := attachframe.ParseHeader(header)
		if err != nil {
			t.Fatal(err)
		}
		payload := make([]byte, size)
		n, err := io.ReadFull(r, payload)
		if typ == attachframe.Exit && err == nil {
			exit = &attachframe.ExitStatus{}
			if err := json.Unmarshal(payload, exit); err != nil {
				t.Fatal(err)
			}
		} else if err == nil || typ == attachframe.Stdout || typ == attachframe.Stderr {
			take(typ, payload[:n]) // a part of a frame counts as well
		}
		if err != nil {
			return true, exit
		}
	}
}

func TestUseCountsWhileOutputIsFollowed(t *testing.T) {
	w := newWorld(t)
	w.process("POST", "/processes", `{"id":"a","cmd":["sleep","600"]}`, 201)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/v1/environments/fuse-t/processes/a/output?follow=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	w.uses(1)
	cancel()
	_ = res.Body.Close()
	w.unused()
}

func TestStreamsEndWithTheServer(t *testing.T) {
	w := newWorld(t)
	w.process("POST", "/processes", `{"id":"a","cmd":["sleep","600"]}`, 201)
	res, err := http.Get(w.url + "/v1/environments/fuse-t/processes/a/output?follow=1")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	w.streams.End()
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(res.Body); err != nil {
		t.Logf("the answer broke off: %v", err) // either end is one that a client takes up again
	}
	if strings.Contains(buf.String(), "exit_code") {
		t.Error("the process did not end")
	}
}
