// Package settings declares the collection of what the fleet is told or finds
// out while it runs, for the services that share it.
package settings

import (
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Documents is that collection, by name of the setting.
var Documents = state.NewCollection[fleet.Setting]("settings")
