package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/rooted"
)

func (a *app) copy() *cobra.Command {
	setuid := false
	cmd := &cobra.Command{
		Use: "cp SRC DST", Short: "Copy files and directories to or from an environment",
		Long: "cp copies between this machine and an environment; one of the two is ID:/PATH.\n" +
			"Directories go with all that is in them. Modes, times, links and, where this\n" +
			"program may, owners are kept; setuid and setgid bits of what comes from an\n" +
			"environment only with -p. A copy of a file that a broken connection cut off\n" +
			"goes on where it stopped. DST - is standard output.",
		Example: "  fuse cp ./src fuse-a:/work/src\n  fuse cp fuse-a:/work/report.pdf .",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			fromEnv, fromPath, fromRemote := cutEnv(args[0])
			toEnv, toPath, toRemote := cutEnv(args[1])
			if fromRemote == toRemote {
				return a.Usage("one of the two must be ID:/PATH, and the other a path of this machine")
			}
			g, err := a.guest()
			if err != nil {
				return err
			}
			c := copying{a, g, time.Now(), setuid}
			if fromRemote {
				return c.down(cmd.Context(), fromEnv, fromPath, args[1])
			}
			return c.up(cmd.Context(), args[0], toEnv, toPath)
		},
	}
	cmd.Flags().BoolVarP(&setuid, "preserve-permissions", "p", false, "keep setuid and setgid bits of what comes from an environment")
	return cmd
}

// cutEnv takes ID:/PATH apart. A path of this machine with a colon is written
// with ./ before it.
func cutEnv(arg string) (env, path string, ok bool) {
	env, path, ok = strings.Cut(arg, ":")
	if !ok || env == "" || strings.ContainsAny(env, "/.") && strings.HasPrefix(env, ".") || strings.Contains(env, "/") || !strings.HasPrefix(path, "/") {
		return "", "", false
	}
	return env, path, true
}

type copying struct {
	*app
	g      client.Guest
	began  time.Time
	setuid bool // such bits are kept on the way down
}

func (c copying) done(bytes int64) {
	took := time.Since(c.began)
	c.Progress("%d bytes in %.1f s (%.1f MB/s)", bytes, took.Seconds(), float64(bytes)/1e6/max(took.Seconds(), 1e-9))
}

// up copies to an environment.
func (c copying) up(ctx context.Context, from, env, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	contents := strings.HasSuffix(from, "/.") || from == "."
	there, err := c.g.Stat(ctx, env, to, true)
	switch {
	case err == nil && there.Type == "directory" && !contents:
		to = path.Join(to, filepath.Base(from))
	case err != nil && client.CodeOf(err) != "not_found":
		return err
	case err != nil && strings.HasSuffix(to, "/") && !info.IsDir():
		to = path.Join(to, filepath.Base(from))
	}
	to = path.Clean(to)
	if info.IsDir() {
		return c.upTree(ctx, from, env, to)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a directory", from)
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	u := client.Upload{Path: to, Parents: true, Data: f, Mode: fmt.Sprintf("%04o", info.Mode().Perm()), ModifiedNS: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		u.Owner = fmt.Sprintf("%d:%d", st.Uid, st.Gid)
	}
	if _, err := c.g.Upload(ctx, env, u); err != nil {
		return err
	}
	c.done(info.Size())
	return nil
}

func (c copying) upTree(ctx context.Context, from, env, to string) error {
	full, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	dir, err := os.OpenRoot(full)
	if err != nil {
		return err
	}
	defer dir.Close()
	r, w := io.Pipe()
	packing := make(chan rooted.Packed, 1)
	go func() { // ends with the pipe
		packed, err := rooted.Pack(ctx, dir, ".", w)
		_ = w.CloseWithError(err) // never fails
		packing <- packed
	}()
	u, err := c.g.Unpack(ctx, env, to, r)
	_ = r.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // never fails
	packed := <-packing
	if err != nil {
		return err
	}
	if packed.Skipped > 0 {
		c.Progress("warning: %d sockets, pipes and devices were left out", packed.Skipped)
	}
	c.done(u.Bytes)
	return nil
}

// down copies from an environment.
func (c copying) down(ctx context.Context, env, from, to string) error {
	there, err := c.g.Stat(ctx, env, from, true)
	if err != nil {
		return err
	}
	if to == "-" {
		if there.Type == "directory" {
			return c.g.Pack(ctx, env, from, c.Out)
		}
		return c.g.Download(ctx, env, from, c.Out)
	}
	if info, err := os.Stat(to); err == nil && info.IsDir() && !strings.HasSuffix(from, "/.") && path.Clean(from) != "/" {
		to = filepath.Join(to, path.Base(path.Clean(from)))
	}
	if there.Type == "directory" {
		return c.downTree(ctx, env, from, to)
	}
	part, err := os.CreateTemp(filepath.Dir(to), ".fuse-part-*")
	if err != nil {
		return err
	}
	defer os.Remove(part.Name())
	err = c.g.Download(ctx, env, from, part)
	var mode uint32
	if _, serr := fmt.Sscanf(there.Mode, "%o", &mode); serr == nil && err == nil {
		err = c.own(part, there, mode)
	}
	size, serr := part.Seek(0, io.SeekEnd)
	if err = errors.Join(err, serr, part.Close()); err != nil {
		return err
	}
	if err := os.Chtimes(part.Name(), time.Time{}, there.ModifiedAt); err != nil {
		return err
	}
	if err := os.Rename(part.Name(), to); err != nil {
		return err
	}
	c.done(size)
	return nil
}

// own gives a file that came down its owner, where this program may, and then
// its mode, of which a change of the owner takes bits.
func (c copying) own(f *os.File, there gen.FileInfo, bits uint32) error {
	if os.Geteuid() == 0 {
		if err := f.Chown(there.UID, there.GID); err != nil {
			return err
		}
	}
	mode := os.FileMode(bits & 0o777)
	for bit, m := range map[uint32]os.FileMode{0o4000: os.ModeSetuid, 0o2000: os.ModeSetgid} {
		if c.setuid && bits&bit != 0 {
			mode |= m
		}
	}
	return f.Chmod(mode)
}

// downTree unpacks what an environment sends, which may be anything: nothing of
// it lands outside of the directory.
func (c copying) downTree(ctx context.Context, env, from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	dir, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer dir.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() { // ends with the pipe
		err := c.g.Pack(ctx, env, path.Clean(from), w)
		_ = w.CloseWithError(err) // never fails
		sent <- err
	}()
	done, err := rooted.Unpack(ctx, dir, r, rooted.UnpackOptions{Owners: os.Geteuid() == 0, Setuid: c.setuid})
	if err == nil {
		_, err = io.Copy(io.Discard, r) // what follows the archive's end
	}
	_ = r.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // never fails
	if serr := <-sent; err == nil || errors.Is(err, rooted.ErrArchive) && serr != nil {
		err = serr
	}
	if err != nil {
		return err
	}
	c.done(done.Bytes)
	return nil
}
