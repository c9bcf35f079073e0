package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// inNamespace runs fn on a thread that is in ns. fn must not start goroutines
// that count on being there too.
func inNamespace(ns netns.NsHandle, fn func() error) error {
	return onThread(func() error { return netns.Set(ns) }, fn)
}

// inPath is inNamespace for a namespace that has a path.
func inPath(path string, fn func() error) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return inNamespace(ns, fn)
}

// inFresh runs fn in a new namespace, which goes when fn returns unless fn has
// bound it somewhere.
func inFresh(fn func() error) error {
	return onThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, fn)
}

// onThread moves a thread into a namespace, runs fn there and moves it back. A
// thread that cannot be moved back is never used again: its goroutine ends
// without unlocking it, and the runtime then ends the thread.
func onThread(enter, fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("open own network namespace: %w", err)
			return
		}
		defer home.Close()
		if err = enter(); err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		err = fn()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// prepareDir makes the directory of namespaces as iproute2 does: a mount of its
// own, shared. iproute2 would otherwise do it with the first `ip netns add`, on
// top of the namespaces that are there, and these could never be removed again.
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil { // as iproute2 does
		return err
	}
	err = unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
}

// bind gives the namespace of the calling thread a path.
func bind(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o400)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	return nil
}

// unbind takes the path of a namespace away, also one that bind did not
// finish. It says whether there was one.
func unbind(path string) (bool, error) {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not a mount point any more
		}
		if err != nil {
			return true, fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return true, err
}

// bound says whether path is a namespace and not just a file.
func bound(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// writeSysctl sets a value in the namespace of the calling thread.
func writeSysctl(name, value string) error {
	path := filepath.Join("/proc/sys", name)
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("sysctl: %w", err)
	}
	return nil
}
