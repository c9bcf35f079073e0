package hostd

import (
	"github.com/fusevm/fuse/internal/hostd/fence"
	"github.com/fusevm/fuse/internal/hostd/ops"
)

// Fence is the caller's proof that it leads its fleet now.
type Fence = fence.Fence

// Claim raises a fleet's mark when a term begins.
type Claim = fence.Claim

// Ref names one life of a VM and one operation on it.
type Ref = ops.Ref
