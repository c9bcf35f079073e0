// Package uploads holds what a create may send into a guest to its bounds
// (inventory 2.5). It reads nothing but its arguments.
package uploads

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// Bounds of inventory 2.5.
const (
	maxFilesBytes   = 512 << 10
	maxFiles        = 1024
	maxGuestPath    = 4096
	maxSecrets      = 256
	maxSecretKey    = 256
	maxSecretValue  = 64 << 10
	maxSecretsBytes = 1 << 20
)

// reservedDirs hold what the server itself writes into the guest.
var reservedDirs = []string{fleet.ReservedGuestDir, fleet.GuestEgressDir}

// Within says whether a path is a directory or below it.
func Within(dir, p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// CheckFiles holds the caller's files to their bounds and away from what is the
// server's own.
func CheckFiles(files map[string][]byte) error {
	if len(files) > maxFiles {
		return fleet.Invalid("files", fmt.Sprintf("%d files", maxFiles), "pack them into an archive and unpack it in the startup script", "has %d files", len(files))
	}
	total := 0
	for _, p := range slices.Sorted(maps.Keys(files)) {
		if err := checkGuestPath(p); err != nil {
			return err
		}
		for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
			if _, taken := files[dir]; taken {
				return fleet.Invalid("files", "a path is a file or a directory", "rename one of the two", "has %.120q and, below it, %.120q", dir, p)
			}
		}
		total += len(files[p])
	}
	if total > maxFilesBytes {
		return tooLarge("files", fmt.Sprintf("%d bytes together", maxFilesBytes),
			"fetch large files from the startup script, or put them into the image", "are %d bytes together", total)
	}
	return nil
}

// tooLarge refuses what is right but for its size.
func tooLarge(field, limit, remedy, format string, args ...any) error {
	e := fleet.Invalid(field, limit, remedy, format, args...)
	e.Code = fleet.CodePayloadTooLarge
	return e
}

func checkGuestPath(p string) error {
	const remedy = "use an absolute path without dot segments, outside " + fleet.ReservedGuestDir + " and " + fleet.GuestEgressDir
	bad := func(why string) error {
		return fleet.Invalid("files", fmt.Sprintf("absolute and clean, at most %d bytes", maxGuestPath), remedy, "path %.120q %s", p, why)
	}
	switch {
	case !path.IsAbs(p) || path.Clean(p) != p || p == "/":
		return bad("is not an absolute, clean path of a file")
	case strings.ContainsAny(p, "\x00\n\r"):
		return bad("has a NUL or a line break")
	case len(p) > maxGuestPath:
		return bad("is too long")
	case p == fleet.GuestEgressProfilePath:
		return bad("is the server's own")
	}
	for _, dir := range reservedDirs {
		if Within(dir, p) {
			return bad("is in a directory of the server's own")
		}
	}
	return nil
}

// CheckSecrets holds the limits of inventory 2.5 and that every secret named
// by the manifest is there. Values never show in an error.
func CheckSecrets(secrets map[string]string, wanted []string) error {
	if len(secrets) > maxSecrets {
		return fleet.Invalid("secrets", fmt.Sprintf("%d secrets", maxSecrets), "send fewer, or one that holds a document", "has %d secrets", len(secrets))
	}
	total := 0
	for _, k := range slices.Sorted(maps.Keys(secrets)) {
		total += len(k) + len(secrets[k])
		switch {
		case k == "" || len(k) > maxSecretKey || strings.ContainsRune(k, 0):
			return fleet.Invalid("secrets", fmt.Sprintf("names of 1 to %d bytes without NUL", maxSecretKey), "rename it", "has the name %.40q of %d bytes", k, len(k))
		case len(secrets[k]) > maxSecretValue:
			return tooLarge("secrets", fmt.Sprintf("values of %d bytes", maxSecretValue), "send a shorter value, or a file", "has %d bytes in %.80q", len(secrets[k]), k)
		}
	}
	if total > maxSecretsBytes {
		return tooLarge("secrets", fmt.Sprintf("%d bytes together", maxSecretsBytes), "send fewer or shorter secrets", "are %d bytes together", total)
	}
	for _, name := range wanted {
		if _, ok := secrets[name]; !ok {
			return fleet.Invalid("secrets", "every secret that the manifest names", "send it, or take it out of the manifest", "lacks %.80q, which the manifest names", name)
		}
	}
	return nil
}

// GuestSecrets is the map that the guest receives: a copy without the
// credential of the egress backend. Direct egress, the only mode there is, has
// no such credential, so nothing is left out.
func GuestSecrets(secrets map[string]string, _ fleet.EgressSpec) map[string]string {
	if secrets == nil {
		return map[string]string{}
	}
	return maps.Clone(secrets)
}
