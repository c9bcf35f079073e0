package guest

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/testkit"
)

func at(path string, more ...string) string {
	return "/files?path=" + url.QueryEscape(path) + strings.Join(more, "")
}

func TestFileLife(t *testing.T) {
	w := newWorld(t)
	var f gen.FileInfo
	put := func(path, text, more string) {
		t.Helper()
		if err := json.Unmarshal([]byte(w.want(200, "PUT", at(path, more), text)), &f); err != nil {
			t.Fatal(err)
		}
	}
	put("/a/b/file", "hello", "&parents=1&mode=0640&owner=12:34&mtime=1000000000000000000")
	if f.Name != "file" || f.Mode != "0640" || f.UID != 12 || f.GID != 34 || f.Size != 5 || f.ModifiedAt.Unix() != 1_000_000_000 {
		t.Errorf("written %+v", f)
	}
	put("/a/b/file", "hello again", "") // as it was, but for the bytes
	if f.Mode != "0640" || f.UID != 12 || f.Size != 11 {
		t.Errorf("written again %+v", f)
	}
	if got := w.want(200, "GET", at("/a/b/file"), ""); got != "hello again" {
		t.Errorf("read %q", got)
	}
	w.want(204, "POST", "/files?action=mkdir", `{"path":"/a/c/d","parents":true,"mode":"0700"}`)
	w.want(409, "POST", "/files?action=mkdir", `{"path":"/a/c/d"}`)
	w.want(204, "POST", "/files?action=mkdir", `{"path":"/a/c/d","parents":true}`)
	w.want(204, "POST", "/files?action=move", `{"path":"/a/b/file","to":"/a/c/moved"}`)
	put("/a/b/file", "other", "")
	w.want(409, "POST", "/files?action=move", `{"path":"/a/b/file","to":"/a/c/moved"}`)
	w.want(204, "POST", "/files?action=move", `{"path":"/a/b/file","to":"/a/c/moved","replace":true}`)
	var list gen.FileList
	if err := json.Unmarshal([]byte(w.want(200, "GET", "/files/list?path=/a/c&limit=1", "")), &list); err != nil || len(list.Files) != 1 || list.Next != "d" {
		t.Errorf("first part %+v, %v", list, err)
	}
	list = gen.FileList{}
	if err := json.Unmarshal([]byte(w.want(200, "GET", "/files/list?path=/a/c&after=d", "")), &list); err != nil || len(list.Files) != 1 || list.Files[0].Name != "moved" || list.Next != "" {
		t.Errorf("the rest %+v, %v", list, err)
	}
	w.want(409, "DELETE", at("/a"), "")
	w.want(204, "DELETE", at("/a", "&recursive=1"), "")
	w.want(404, "DELETE", at("/a", "&recursive=1"), "")
	w.want(404, "GET", "/files/stat?path=/a", "")
	w.unused()
	if a, _ := w.guests.Activity(w.uid); a.Last.IsZero() {
		t.Errorf("uses %+v", a)
	}
}

func TestBadFiles(t *testing.T) {
	w := newWorld(t)
	w.want(200, "PUT", at("/dir/file", "&parents=1"), "x")
	for _, c := range []struct {
		status             int
		method, path, body string
	}{
		{400, "GET", at("relative"), ""},
		{400, "GET", at("/a/../b"), ""},
		{400, "GET", at("/" + strings.Repeat("x", 5000)), ""},
		{400, "GET", "/files", ""},
		{400, "PUT", at("/f", "&mode=999"), "x"},
		{400, "PUT", at("/f", "&owner=root"), "x"},
		{400, "PUT", at("/f", "&offset=3"), "x"},
		{400, "PUT", at("/f", "&upload="+strings.Repeat("u", 200)), "x"},
		{404, "PUT", at("/not/there/f"), "x"},
		{409, "PUT", at("/dir"), "x"},
		{409, "PUT", at("/dir/file/below"), "x"},
		{409, "PUT", at("/f", "&upload=u&offset=5"), "x"},
		{403, "PUT", at("/fuse/auth-token", "&parents=1"), "x"},
		{403, "PUT", at("/etc/fuse/x", "&parents=1"), "x"},
		{409, "GET", at("/dir"), ""},
		{404, "GET", at("/nothing"), ""},
		{404, "GET", "/archive?path=/nothing", ""},
		{404, "GET", "/files/watch?path=/nothing", ""},
		{404, "PUT", "/archive?path=/nothing", "x"},
		{400, "DELETE", at("/"), ""},
	} {
		if got, text := w.do(c.method, c.path, c.body); got != c.status {
			t.Errorf("%s %.80s: %d, not %d: %s", c.method, c.path, got, c.status, text)
		}
	}
}

// TestNothingLeadsOutOfTheRoot asks for what links lead to.
func TestNothingLeadsOutOfTheRoot(t *testing.T) {
	w := newWorld(t)
	w.want(200, "PUT", at("/secret"), "s")
	w.want(200, "PUT", at("/in/file", "&parents=1"), "f")
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	for name, target := range map[string]string{"up": "../secret", "abs": "/secret", "dir": ".."} {
		if err := tw.WriteHeader(&tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	w.want(200, "PUT", "/archive?path=/in", archive.String())
	for _, p := range []string{"/up", "/abs", "/dir/secret"} {
		if got, text := w.do("GET", at(p, "&root=/in"), ""); got != 403 {
			t.Errorf("%s: %d %s", p, got, text)
		}
		if got := w.want(200, "GET", at("/in"+p), ""); got != "s" {
			t.Errorf("without a root, %s is %q", p, got)
		}
	}
	if got, text := w.do("PUT", at("/dir/evil", "&root=/in"), "x"); got != 403 {
		t.Errorf("written outside: %d %s", got, text)
	}
	if got, text := w.do("DELETE", at("/dir/secret", "&root=/in"), ""); got != 403 {
		t.Errorf("removed outside: %d %s", got, text)
	}
	if got := w.want(200, "GET", at("/file", "&root=/in"), ""); got != "f" {
		t.Errorf("inside %q", got)
	}
	archive.Reset()
	tw = tar.NewWriter(&archive)
	if err := errors.Join(tw.WriteHeader(&tar.Header{Name: "dir/evil", Typeflag: tar.TypeReg}), tw.Close()); err != nil {
		t.Fatal(err)
	}
	if got, text := w.do("PUT", "/archive?path=/in", archive.String()); got != 403 {
		t.Errorf("unpacked outside: %d %s", got, text)
	}
}

func TestRanges(t *testing.T) {
	w := newWorld(t)
	w.want(200, "PUT", at("/f"), "0123456789")
	get := func(header ...string) (int, string, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/environments/fuse-t"+at("/f"), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(raw), res.Header.Get("ETag")
	}
	_, _, etag := get()
	for header, want := range map[string]string{
		"bytes=0-3": "206 0123", "bytes=4-": "206 456789", "bytes=-3": "206 789", "bytes=8-99": "206 89", "bytes=10-": "416 ", "bytes=0-1,3-4": "200 0123456789", "lines=1": "200 0123456789",
	} {
		if status, text, _ := get("Range", header); fmt.Sprint(status, " ", text) != want {
			t.Errorf("%s: %d %q", header, status, text)
		}
	}
	if status, text, _ := get("Range", "bytes=4-", "If-Range", etag); status != http.StatusPartialContent || text != "456789" {
		t.Errorf("the same file: %d %q", status, text)
	}
	if status, text, _ := get("Range", "bytes=4-", "If-Range", `"other"`); status != http.StatusOK || text != "0123456789" {
		t.Errorf("another file: %d %q", status, text)
	}
}

// TestUploadOverCutConnections sends a file over connections that break at a
// random byte; what is there at the end is what was sent, and nothing before.
func TestUploadOverCutConnections(t *testing.T) {
	w := newWorld(t)
	size := testkit.Count(3<<20, 1<<30)
	data := make([]byte, size)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	broken := errors.New("the line is cut")
	cuts := 0
	for {
		var found gen.UploadOffset
		if err := json.Unmarshal([]byte(w.want(200, "GET", "/files/upload?path=/up/f&upload=u1", "")), &found); err != nil {
			t.Fatal(err)
		}
		w.want(404, "GET", "/files/stat?path=/up/f", "")
		rest := data[found.Offset:]
		cut := rng.IntN(1 << 20)
		var in io.Reader = bytes.NewReader(rest)
		if cut < len(rest) {
			in = io.MultiReader(bytes.NewReader(rest[:cut]), iotest.ErrReader(broken))
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.url+"/v1/environments/fuse-t"+at("/up/f", "&parents=1&upload=u1&offset=", fmt.Sprint(found.Offset)), in)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = int64(len(rest))
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		if err == nil && res.StatusCode == http.StatusConflict {
			continue // an earlier call was still on its way: ask again how far it came
		}
		if cut >= len(rest) {
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("the last part: %v %v", res, err)
			}
			break
		}
		cuts++
	}
	got := w.want(200, "GET", at("/up/f"), "")
	if sha256.Sum256([]byte(got)) != sha256.Sum256(data) {
		t.Errorf("%d other bytes than the %d sent, after %d cuts", len(got), size, cuts)
	}
	var list gen.FileList
	if err := json.Unmarshal([]byte(w.want(200, "GET", "/files/list?path=/up", "")), &list); err != nil || len(list.Files) != 1 {
		t.Errorf("left beside it: %+v, %v", list, err)
	}
}

// TestWhatTheServerHasIsKept breaks a connection in the middle of a piece: the
// upload goes on behind the last byte that the server was sent.
func TestWhatTheServerHasIsKept(t *testing.T) {
	w := newWorld(t)
	const sent, size = 700 << 10, 1 << 20
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "PUT /v1/environments/fuse-t/files?path=/up/f&parents=1&upload=u1&offset=0 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s",
		size, strings.Repeat("x", sent)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 2*time.Minute, "the upload is under way", func() bool {
		status, list := w.do("GET", "/files/list?path=/up", "")
		return status == http.StatusOK && strings.Contains(list, ".fuse-part-")
	})
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	var found gen.UploadOffset
	if err := json.Unmarshal([]byte(w.want(200, "GET", "/files/upload?path=/up/f&upload=u1", "")), &found); err != nil || found.Offset != sent {
		t.Errorf("it came as far as %d of %d, %v", found.Offset, sent, err)
	}
}

// flood is a file that is never in memory as a whole.
type flood struct{ left int64 }

func (f *flood) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), f.left))
	f.left -= int64(n)
	return n, nil
}

// TestMemoryIsConstant moves a large file up and down and watches the memory of
// server, host agent and guest agent, which are all in this process.
func TestMemoryIsConstant(t *testing.T) {
	w := newWorld(t)
	size := int64(testkit.Count(64<<20, 1<<30))
	most, stop := peak()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.url+"/v1/environments/fuse-t"+at("/big"), &flood{size})
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = size
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("up: %d", res.StatusCode)
	}
	down, err := http.Get(w.url + "/v1/environments/fuse-t" + at("/big"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, down.Body)
	_ = down.Body.Close()
	if err != nil || n != size {
		t.Fatalf("down: %d bytes, %v", n, err)
	}
	stop()
	if grown := most.Load(); grown > 24<<20 {
		t.Errorf("memory grew by %d bytes for a file of %d", grown, size)
	} else {
		t.Logf("%d MiB up and down, memory grew by %d KiB at most", size>>20, grown>>10)
	}
}

func TestArchives(t *testing.T) {
	w := newWorld(t)
	w.want(200, "PUT", at("/src/a/f", "&parents=1&mode=0751&owner=7:8"), "content")
	archive := w.want(200, "GET", "/archive?path=/src", "")
	w.want(200, "PUT", "/archive?path=/dst/deep&parents=1&owners=1", archive)
	var f gen.FileInfo
	if err := json.Unmarshal([]byte(w.want(200, "GET", "/files/stat?path=/dst/deep/a/f", "")), &f); err != nil || f.Mode != "0751" || f.UID != 7 || f.GID != 8 {
		t.Errorf("unpacked %+v, %v", f, err)
	}
	if got, text := w.do("PUT", "/archive?path=/dst", archive[:len(archive)/3]); got != 400 {
		t.Errorf("half an archive: %d %s", got, text)
	}
}

func TestWatch(t *testing.T) {
	w := newWorld(t)
	w.want(204, "POST", "/files?action=mkdir", `{"path":"/w"}`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/v1/environments/fuse-t/files/watch?path=/w&recursive=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	until := func(want gen.FileChange) {
		t.Helper()
		for lines.Scan() {
			raw, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok {
				continue
			}
			var c gen.FileChange
			if err := json.Unmarshal([]byte(raw), &c); err != nil {
				t.Fatal(err)
			}
			if c == want {
				return
			}
		}
		t.Fatalf("never told of %+v: %v", want, lines.Err())
	}
	until(gen.FileChange{Kind: "ready", Path: "/w"})
	w.want(204, "POST", "/files?action=mkdir", `{"path":"/w/sub"}`)
	until(gen.FileChange{Kind: "create", Path: "/w/sub", Directory: true})
	until(gen.FileChange{Kind: "attributes", Path: "/w/sub", Directory: true})
	w.want(200, "PUT", at("/w/sub/f"), "x")
	until(gen.FileChange{Kind: "move_to", Path: "/w/sub/f"})
	w.want(204, "DELETE", at("/w/sub/f"), "")
	until(gen.FileChange{Kind: "remove", Path: "/w/sub/f"})
	w.want(204, "DELETE", at("/w", "&recursive=1"), "")
	until(gen.FileChange{Kind: "remove", Path: "/w"})
	if lines.Scan() {
		t.Logf("after the end of what is watched: %q", lines.Text())
	}
}
