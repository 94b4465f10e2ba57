//! Which fields a message has and how each is encoded: what a scan has to know that goes over a message without
//! decoding it. Generated from `proto/` by the build script.

/// The fields of a message.
#[derive(Debug)]
pub struct Schema {
    fields: &'static [Field],
}

/// A field of a message.
#[derive(Debug)]
pub struct Field {
    number: u32,
    wire_type: u8,
    /// A repeated number may come as one string of numbers too.
    packs: bool,
    child: Option<&'static Schema>,
}

/// A message whose fields are known.
pub trait Described {
    /// Its fields.
    const SCHEMA: &'static Schema;
}

impl Schema {
    /// The field of this number.
    pub fn field(&self, number: u64) -> Option<&'static Field> {
        self.fields.iter().find(|field| u64::from(field.number) == number)
    }

    /// Whether this is that schema.
    pub fn is(&'static self, other: &'static Schema) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Field {
    /// Whether a value of this wire type can be the field's.
    pub fn takes(&self, wire_type: u8) -> bool {
        wire_type == self.wire_type || (self.packs && wire_type == 2)
    }

    /// The schema of a field that is a message.
    pub fn child(&self) -> Option<&'static Schema> {
        self.child
    }
}

include!(concat!(env!("OUT_DIR"), "/schema.rs"));
