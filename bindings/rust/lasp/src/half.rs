//! The 16-bit element types, as bits. Other crates' types of the same bits (half's, say) go in and out by
//! `slice_from_bits`.
use std::fmt;

macro_rules! sixteen_bits {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(u16);

        impl $name {
            /// The number of these bits.
            pub const fn from_bits(bits: u16) -> Self {
                Self(bits)
            }

            /// Its bits.
            pub const fn to_bits(self) -> u16 {
                self.0
            }

            /// A slice of bits, seen as numbers. Nothing is copied.
            pub fn slice_from_bits(bits: &[u16]) -> &[Self] {
                // SAFETY: repr(transparent) over u16.
                unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), bits.len()) }
            }

            /// A slice of bits, seen as numbers. Nothing is copied.
            pub fn slice_from_bits_mut(bits: &mut [u16]) -> &mut [Self] {
                // SAFETY: repr(transparent) over u16, of which every pattern is valid.
                unsafe { std::slice::from_raw_parts_mut(bits.as_mut_ptr().cast(), bits.len()) }
            }
        }

        impl From<$name> for f32 {
            fn from(x: $name) -> f32 {
                x.to_f32()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.to_f32())
            }
        }
    };
}

sixteen_bits! {
    /// bfloat16: the upper half of an `f32`. Equality is of bits.
    Bf16
}
sixteen_bits! {
    /// IEEE 754 binary16. Equality is of bits.
    F16
}

impl Bf16 {
    /// The nearest bfloat16; of two, the even one.
    pub fn from_f32(x: f32) -> Bf16 {
        let bits = x.to_bits();
        if x.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x40); // stays a NaN when its lower bits go
        }
        Bf16(((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }

    /// The same number; exact.
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl F16 {
    /// The nearest binary16; of two, the even one; infinity where there is none as large.
    pub fn from_f32(x: f32) -> F16 {
        let bits = x.to_bits();
        let sign = ((bits >> 16) & 0x8000) as u16;
        let magnitude = bits & 0x7fff_ffff;
        let unsigned = if magnitude > 0x7f80_0000 {
            0x7e00 // NaN
        } else if magnitude >= 0x477f_f000 {
            0x7c00 // 65520 and more round to infinity
        } else if magnitude >= 0x3880_0000 {
            // Normal: drop 13 bits with the exponent's bias moved from 127 to 15.
            (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112 << 23)) >> 13
        } else {
            // Subnormal: adding 0.5 leaves multiples of 2^-24, rounded to even by the addition itself.
            (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
        };
        F16(sign | unsigned as u16)
    }

    /// The same number; exact.
    pub fn to_f32(self) -> f32 {
        let (exponent, fraction) = (u32::from(self.0 >> 10) & 31, u32::from(self.0) & 0x3ff);
        let magnitude = match exponent {
            0 => fraction as f32 * (1.0 / 16_777_216.0),
            31 => f32::from_bits(0x7f80_0000 | fraction << 13),
            _ => f32::from_bits((exponent + 112) << 23 | fraction << 13),
        };
        if self.0 & 0x8000 != 0 {
            -magnitude
        } else {
            magnitude
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_survives_a_round_trip() {
        for bits in 0..=u16::MAX {
            let (b, h) = (Bf16::from_bits(bits), F16::from_bits(bits));
            assert!(Bf16::from_f32(b.to_f32()) == b || b.to_f32().is_nan(), "bfloat16 {:#x}", bits);
            assert!(F16::from_f32(h.to_f32()) == h || h.to_f32().is_nan(), "float16 {:#x}", bits);
        }
    }

    // Between two neighbours: just below the middle the lower, just above it the upper, in the middle the even one.
    #[test]
    fn rounds_to_nearest_even() {
        for low in 0..0x7bffu16 {
            let (a, b) = (F16::from_bits(low).to_f32(), F16::from_bits(low + 1).to_f32());
            let middle = (a + b) / 2.0; // exact: one more bit than binary16 has
            assert_eq!(F16::from_f32(middle).to_bits(), low + (low & 1));
            assert_eq!(F16::from_f32(f32::from_bits(middle.to_bits() - 1)).to_bits(), low);
            assert_eq!(F16::from_f32(-f32::from_bits(middle.to_bits() + 1)).to_bits(), 0x8000 | (low + 1));
        }
        for low in 0..0x7f7fu16 {
            let middle = f32::from_bits(u32::from(low) << 16 | 0x8000);
            assert_eq!(Bf16::from_f32(middle).to_bits(), low + (low & 1));
            assert_eq!(Bf16::from_f32(f32::from_bits(middle.to_bits() - 1)).to_bits(), low);
            assert_eq!(Bf16::from_f32(f32::from_bits(middle.to_bits() + 1)).to_bits(), low + 1);
        }
        assert_eq!(F16::from_f32(65519.9).to_bits(), 0x7bff);
        assert_eq!(F16::from_f32(65520.0).to_bits(), 0x7c00);
        assert!(
            F16::from_f32(f32::NAN).to_f32().is_nan()
                && Bf16::from_f32(f32::from_bits(0x7f80_0001)).to_f32().is_nan()
        );
    }
}
