package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
	"github.com/fusevm/fuse/internal/rooted"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// serve serves a directory as a machine of its own.
func serve(t *testing.T) (dir string, c guestwirev1connect.FilesClient) {
	t.Helper()
	dir = t.TempDir()
	return dir, client(t, New(dir, filepath.Join(dir, "fuse")))
}

func client(t *testing.T, s *Service) guestwirev1connect.FilesClient {
	t.Helper()
	_, h := guestwirev1connect.NewFilesHandler(s)
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return guestwire.NewSurface(srv.Client(), srv.URL).Files
}

func start(m *guestwirev1.UploadStart) *guestwirev1.UploadFileRequest {
	return &guestwirev1.UploadFileRequest{Kind: &guestwirev1.UploadFileRequest_Start{Start: m}}
}

func data(text string) *guestwirev1.UploadFileRequest {
	return &guestwirev1.UploadFileRequest{Kind: &guestwirev1.UploadFileRequest_Data{Data: []byte(text)}}
}

var end = &guestwirev1.UploadFileRequest{Kind: &guestwirev1.UploadFileRequest_End{End: &guestwirev1.UploadEnd{}}}

func send(ctx context.Context, c guestwirev1connect.FilesClient, messages ...*guestwirev1.UploadFileRequest) error {
	up := c.UploadFile(ctx)
	for _, m := range messages {
		if up.Send(m) != nil {
			break // the answer says why
		}
	}
	_, err := up.CloseAndReceive()
	return guestwire.Failure(ctx, "upload", err)
}

// TestAnUploadIsWholeOrNotThere ends uploads at every message: only the one
// that says that it was all puts the file in its place.
func TestAnUploadIsWholeOrNotThere(t *testing.T) {
	t.Parallel()
	dir, c := serve(t)
	begin := start(&guestwirev1.UploadStart{Place: &guestwirev1.Place{Path: "/f"}})
	for name, messages := range map[string][]*guestwirev1.UploadFileRequest{
		"start": {begin}, "data": {begin, data("x")}, "no start": {data("x"), end},
	} {
		if err := send(t.Context(), c, messages...); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := send(t.Context(), c, begin, data("a"), data("b"), end); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dir + "/f"); string(got) != "ab" || err != nil {
		t.Errorf("written %q, %v", got, err)
	}
}

// TestALinkInThePlaceIsReplaced writes where a link leads to what must not
// change.
func TestALinkInThePlaceIsReplaced(t *testing.T) {
	t.Parallel()
	dir, c := serve(t)
	if err := errors.Join(os.WriteFile(dir+"/kept", []byte("kept"), 0o600), os.Symlink("kept", dir+"/link"), os.Mkdir(dir+"/fuse", 0o700), os.Symlink("/fuse", dir+"/way")); err != nil {
		t.Fatal(err)
	}
	if err := send(t.Context(), c, start(&guestwirev1.UploadStart{Place: &guestwirev1.Place{Path: "/link"}}), data("new"), end); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dir + "/kept"); string(got) != "kept" || err != nil {
		t.Errorf("behind the link is %q, %v", got, err)
	}
	// The machine's own is not reached by a link either.
	err := send(t.Context(), c, start(&guestwirev1.UploadStart{Place: &guestwirev1.Place{Path: "/way/token"}}), data("evil"), end)
	if fleet.CodeOf(err) != fleet.CodeForbidden {
		t.Errorf("by a link into the machine's own: %v", err)
	}
}

// TestTheMachinesOwnStays reaches for it through what is to be made, moved or
// removed. Nothing of a refused call is left.
func TestTheMachinesOwnStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(dir+"/etc/fuse", 0o700), os.WriteFile(dir+"/etc/fuse/env", []byte("own"), 0o600), os.Symlink("etc", dir+"/way"), os.WriteFile(dir+"/etc/passwd", nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s := New(dir, dir+"/fuse", dir+"/etc/fuse")
	at := func(p string) *guestwirev1.Place { return &guestwirev1.Place{Path: p} }
	upload := func(p string) error {
		_, err := s.beginUpload(&guestwirev1.UploadStart{Place: at(p), Parents: true})
		return err
	}
	for name, err := range map[string]error{
		"upload":             upload("/fuse/a/b/c"),
		"upload by a link":   upload("/way/fuse/a/b"),
		"mkdir":              s.makeDirectory(&guestwirev1.MakeDirectoryRequest{Place: at("/fuse/a/b"), Parents: true}),
		"mkdir by a link":    s.makeDirectory(&guestwirev1.MakeDirectoryRequest{Place: at("/way/fuse/a/b"), Parents: true}),
		"remove":             s.removeFile(&guestwirev1.RemoveFileRequest{Place: at("/etc/fuse"), Recursive: true}),
		"remove an ancestor": s.removeFile(&guestwirev1.RemoveFileRequest{Place: at("/etc"), Recursive: true}),
		"move an ancestor":   s.moveFile(&guestwirev1.MoveFileRequest{Place: at("/etc"), To: "/gone"}),
		"move over one":      s.moveFile(&guestwirev1.MoveFileRequest{Place: at("/way"), To: "/etc", Replace: true}),
		"parents":            s.kept.makeParents(machineOf(t, dir), "/fuse"),
	} {
		if fleet.CodeOf(err) != fleet.CodeForbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
	names, err := filepath.Glob(dir + "/*")
	if own, _ := os.ReadDir(dir + "/etc/fuse"); err != nil || len(own) != 1 || len(names) != 2 {
		t.Errorf("there is now %q, and of the machine's own %v, %v", names, own, err)
	}
	if err := s.removeFile(&guestwirev1.RemoveFileRequest{Place: at("/way")}); err != nil {
		t.Errorf("a link to where the machine's own lies: %v", err)
	}
	if err := s.moveFile(&guestwirev1.MoveFileRequest{Place: at("/etc/passwd"), To: "/etc/other"}); err != nil {
		t.Errorf("beside the machine's own: %v", err)
	}
}

func machineOf(t *testing.T, dir string) *rooted.Root {
	t.Helper()
	m, err := rooted.Machine(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// TestAPartIsNotFollowed puts a link where an upload was under way.
func TestAPartIsNotFollowed(t *testing.T) {
	t.Parallel()
	dir, c := serve(t)
	place := &guestwirev1.Place{Path: "/f"}
	if err := send(t.Context(), c, start(&guestwirev1.UploadStart{Place: place, Upload: "u"}), data("abc")); err == nil {
		t.Fatal("an upload without its end is none")
	}
	part := filepath.Join(dir, partName(place, "u"))
	found, err := c.FindUpload(t.Context(), connect.NewRequest(&guestwirev1.FindUploadRequest{Place: place, Upload: "u"}))
	if err != nil || found.Msg.GetOffset() != 3 {
		t.Fatalf("found %v, %v", found, err)
	}
	if err := errors.Join(os.Remove(part), os.WriteFile(dir+"/kept", []byte("kept"), 0o600), os.Symlink("kept", part)); err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int64{3, 0} {
		err := send(t.Context(), c, start(&guestwirev1.UploadStart{Place: place, Upload: "u", Offset: offset}), data("evil"), end)
		if (err == nil) != (offset == 0) {
			t.Errorf("from %d: %v", offset, err)
		}
		if got, err := os.ReadFile(dir + "/kept"); string(got) != "kept" || err != nil {
			t.Errorf("behind the link is %q, %v", got, err)
		}
	}
}

// TestWhoIsTakenUpWritesNoMore lets a call whose connection is as good as cut go
// on after another took its upload up: its late bytes must leave no hole.
func TestWhoIsTakenUpWritesNoMore(t *testing.T) {
	t.Parallel()
	dir, c := serve(t)
	place := &guestwirev1.Place{Path: "/f"}
	offset := func() int64 {
		t.Helper()
		found, err := c.FindUpload(t.Context(), connect.NewRequest(&guestwirev1.FindUploadRequest{Place: place, Upload: "u"}))
		if err != nil {
			t.Fatal(err)
		}
		return found.Msg.GetOffset()
	}
	old := c.UploadFile(t.Context())
	if err := errors.Join(old.Send(start(&guestwirev1.UploadStart{Place: place, Upload: "u"})), old.Send(data("abc"))); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "the bytes are there", func() bool {
		info, err := os.Stat(filepath.Join(dir, partName(place, "u")))
		return err == nil && info.Size() == 3
	})
	if at := offset(); at != 3 {
		t.Fatalf("it came as far as %d", at)
	}
	for range 3 { // late
		_ = old.Send(data("xyz"))
	}
	if _, err := old.CloseAndReceive(); err == nil {
		t.Error("the call that was taken up went on")
	}
	if at := offset(); at != 3 {
		t.Errorf("late bytes were written, up to %d", at)
	}
	if err := send(t.Context(), c, start(&guestwirev1.UploadStart{Place: place, Upload: "u", Offset: 3}), data("def"), end); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dir + "/f"); string(got) != "abcdef" || err != nil {
		t.Errorf("written %q, %v", got, err)
	}
}

// TestWhatIsOnItsWayArrives asks how far an upload came while the pieces of the
// call before, whose sender is gone, are still on their way: they count.
func TestWhatIsOnItsWayArrives(t *testing.T) {
	t.Parallel()
	const pieces, size = 128, 64 << 10
	dir := t.TempDir()
	s := New(dir)
	s.quiet, s.most = time.Minute, time.Minute // a busy machine may let the sender wait
	c := client(t, s)
	place := &guestwirev1.Place{Path: "/f"}
	old := c.UploadFile(t.Context())
	if err := old.Send(start(&guestwirev1.UploadStart{Place: place, Upload: "u"})); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		for range pieces {
			if err := old.Send(data(strings.Repeat("x", size))); err != nil {
				sent <- err
				return
			}
		}
		_, _ = old.CloseAndReceive() // without an end it is refused
		sent <- nil
	}()
	testkit.Eventually(t, time.Minute, "the first bytes are there", func() bool {
		info, err := os.Stat(filepath.Join(dir, partName(place, "u")))
		return err == nil && info.Size() > 0
	})
	found, err := c.FindUpload(t.Context(), connect.NewRequest(&guestwirev1.FindUploadRequest{Place: place, Upload: "u"}))
	if err != nil || found.Msg.GetOffset() != pieces*size {
		t.Errorf("it came as far as %d of %d, %v", found.Msg.GetOffset(), pieces*size, err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func TestPipesAndDevicesDoNotBlock(t *testing.T) {
	t.Parallel()
	dir, c := serve(t)
	if err := syscall.Mkfifo(dir+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := c.ReadFile(t.Context(), connect.NewRequest(&guestwirev1.ReadFileRequest{Place: &guestwirev1.Place{Path: "/pipe"}, Length: -1}))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if out.Receive() || fleet.CodeOf(guestwire.Failure(t.Context(), "read", out.Err())) != fleet.CodeConflict {
		t.Errorf("a pipe: %v", out.Err())
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want connect.Code
	}{
		{fs.ErrNotExist, connect.CodeNotFound},
		{&fs.PathError{Op: "x", Err: syscall.ENOSPC}, connect.CodeResourceExhausted},
		{&fs.PathError{Op: "x", Err: syscall.EXDEV}, connect.CodePermissionDenied},
		{&fs.PathError{Op: "x", Err: syscall.EROFS}, connect.CodeFailedPrecondition},
		{&fs.PathError{Op: "x", Err: syscall.EISDIR}, connect.CodeFailedPrecondition},
		{&fs.PathError{Op: "x", Err: rooted.ErrPath}, connect.CodeInvalidArgument},
		{fmt.Errorf("x: %w", &rooted.EntryError{Name: "a", Why: "b"}), connect.CodeInvalidArgument},
		{offsetError(2, 1), connect.CodeFailedPrecondition},
		{errors.New("x"), connect.CodeInternal},
	} {
		if got := connect.CodeOf(refuse(c.err)); got != c.want {
			t.Errorf("%v is %s, not %s", c.err, got, c.want)
		}
	}
}
