package runner

// Script is what is installed on marquees.
var Script = script
