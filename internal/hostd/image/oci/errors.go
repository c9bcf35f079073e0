package oci

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/fusevm/fuse/internal/fleet"
)

// Reasons, the detail "reason" of this package's errors.
const (
	ReasonReference = "image_reference"    // it cannot be read as a reference
	ReasonUnknown   = "image_unknown"      // the registry has no such image
	ReasonAuth      = "image_auth"         // the registry wants another login
	ReasonRegistry  = "image_registry"     // the registry cannot be reached or fails
	ReasonCorrupt   = "image_corrupt"      // what came is not what its digest says
	ReasonArch      = "image_architecture" // it is built for another one
	ReasonInvalid   = "image_invalid"      // it cannot be made a file system
)

var (
	errLinkLocal = errors.New("link-local addresses are not dialled")
	errStalled   = errors.New("nothing came for too long")
)

func fail(code fleet.Code, reason string, cause error, format string, args ...any) *fleet.Error {
	return fleet.Wrap(code, cause, fmt.Sprintf(format, args...)).With(fleet.DetailReason, reason)
}

func badReference(given string, cause error) error {
	return fail(fleet.CodeInvalidArgument, ReasonReference, cause, "%q is no reference of an image", given).
		With(fleet.DetailRemedy, "write it like docker.io/library/python:3.12, or give the name of an image that hosts have")
}

// remoteError tells what a registry's refusal or silence means.
func remoteError(r Reference, err error) error {
	var known *fleet.Error
	if errors.As(err, &known) {
		return err
	}
	if errors.Is(err, context.Canceled) || ofDisk(err) {
		return err
	}
	if errors.Is(err, errLinkLocal) {
		return fail(fleet.CodeInvalidArgument, ReasonReference, err, "image %s is at an address that is not dialled", r.RepoTag()).
			With(fleet.DetailRemedy, "name a registry")
	}
	var te *transport.Error
	if errors.As(err, &te) {
		switch te.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return fail(fleet.CodeInvalidArgument, ReasonAuth, err, "registry %s does not give image %s to this login", r.Registry(), r.RepoTag()).
				With(fleet.DetailRemedy, "check the name; for a private image run docker login as the user that the server or the host agent runs as")
		case http.StatusNotFound:
			return fail(fleet.CodeInvalidArgument, ReasonUnknown, err, "registry %s has no image %s", r.Registry(), r.Given).
				With(fleet.DetailRemedy, "check the name and the tag")
		case http.StatusTooManyRequests:
			return fail(fleet.CodeUnavailable, ReasonRegistry, err, "registry %s takes no more requests for now", r.Registry()).
				With(fleet.DetailRemedy, "try again later, or log in: registries allow more to known users")
		}
	}
	if errors.Is(verifyError(err), errCorrupt) {
		return fail(fleet.CodeUnavailable, ReasonCorrupt, err, "registry %s gave other bytes of image %s than their digest says", r.Registry(), r.RepoTag()).
			With(fleet.DetailRemedy, "try again; if it stays, push the image again")
	}
	return fail(fleet.CodeUnavailable, ReasonRegistry, err, "registry %s did not give image %s", r.Registry(), r.RepoTag()).
		With(fleet.DetailRemedy, "check that the registry is up and reachable from this machine, then try again")
}

// ofDisk reports an error of this machine's own disk.
func ofDisk(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// localError is of a layout or an archive.
func localError(path string, err error) error {
	var known *fleet.Error
	if errors.As(err, &known) || errors.Is(err, context.Canceled) || ofDisk(err) {
		return err
	}
	if errors.Is(err, errCorrupt) {
		return fail(fleet.CodeInvalidArgument, ReasonCorrupt, err, "%s holds other bytes than its digests say", path).
			With(fleet.DetailRemedy, "export the image again")
	}
	return fail(fleet.CodeInvalidArgument, ReasonInvalid, err, "%s cannot be read as an image: %v", path, err).
		With(fleet.DetailRemedy, "give an OCI layout directory, or an archive made by docker save")
}

func wrongArch(what, want string, have []string) error {
	return fail(fleet.CodeInvalidArgument, ReasonArch, nil, "image %s is not built for %s, only for %v", what, want, have).
		With(fleet.DetailScope, want).
		With(fleet.DetailRemedy, "name an image of that architecture, or ask for a host of another one with spec.arch")
}
